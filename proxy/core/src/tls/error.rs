//! Why TLS cannot be terminated or spoken as configured.

/// What is wrong with certificates, keys or authorities, with the file it is about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsConfigError(String);

impl From<String> for TlsConfigError {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for TlsConfigError {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
