//! Why certificates cannot be obtained as configured.

use sluice_core::tls::TlsConfigError;

/// What is wrong with a folder, a key, a hook or a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct AcmeError(String);

impl From<TlsConfigError> for AcmeError {
    fn from(error: TlsConfigError) -> Self {
        Self(error.to_string())
    }
}
