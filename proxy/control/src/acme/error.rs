//! Why certificates cannot be issued as configured.

use sluice_core::tls::TlsConfigError;

/// What is wrong with a folder, a key, a hook or an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AcmeError(String);

impl From<String> for AcmeError {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<TlsConfigError> for AcmeError {
    fn from(error: TlsConfigError) -> Self {
        Self(error.to_string())
    }
}

impl From<&str> for AcmeError {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
