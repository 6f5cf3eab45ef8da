//! Why certificates cannot be issued as configured.

use sluice_core::tls::TlsConfigError;

/// What is wrong with a folder, a key, a hook or an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct AcmeError(String);

impl From<TlsConfigError> for AcmeError {
    fn from(error: TlsConfigError) -> Self {
        Self(error.to_string())
    }
}
