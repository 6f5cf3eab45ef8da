//! Why the process does not start, or a change fails.

use sluice_core::tls::TlsConfigError;
use sluice_engine::AssistError;
use sluice_engine::equipment::EquipmentError;
use sluice_net::listener::BindError;

use crate::acme::AcmeError;
use crate::admin::TokenError;
use crate::handover::UpgradeError;

/// Why the process does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// a listener cannot be bound
    #[error(transparent)]
    Bind(#[from] BindError),
    /// certificates cannot be used
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    /// certificates cannot be issued
    #[error(transparent)]
    Acme(#[from] AcmeError),
    /// the admin listener has no token
    #[error(transparent)]
    Token(#[from] TokenError),
    /// a required assist is not available
    #[error(transparent)]
    Assist(#[from] AssistError),
    /// the configuration cannot be applied
    #[error(transparent)]
    Site(#[from] ReloadError),
    /// a step of the start failed
    #[error("{0}")]
    Step(String),
}

impl From<String> for StartError {
    fn from(text: String) -> Self {
        Self::Step(text)
    }
}

/// Why a configuration is not applied; the previous one stays.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// certificates cannot be used
    #[error(transparent)]
    Tls(#[from] TlsConfigError),
    /// certificates cannot be issued
    #[error(transparent)]
    Acme(#[from] AcmeError),
    /// an error page or a file of users cannot be read
    #[error(transparent)]
    Equipment(#[from] EquipmentError),
    /// another step failed
    #[error("{0}")]
    Step(String),
}

impl From<String> for ReloadError {
    fn from(text: String) -> Self {
        Self::Step(text)
    }
}

impl From<&str> for ReloadError {
    fn from(text: &str) -> Self {
        Self::Step(text.to_owned())
    }
}

impl From<ReloadError> for UpgradeError {
    fn from(error: ReloadError) -> Self {
        Self::from(error.to_string())
    }
}
