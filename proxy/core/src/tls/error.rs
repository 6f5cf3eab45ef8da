//! Why TLS cannot be terminated or used upstream as configured.

/// What is wrong with certificates, keys or authorities, with the name of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct TlsConfigError(String);
