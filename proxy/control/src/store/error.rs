//! Why a store has not done what it was asked.

use derive_more::Display;

use crate::remote::RemoteError;

/// Why a store has not done what it was asked, in a sentence.
#[derive(Clone, Debug, Display)]
#[display("{text}")]
pub(crate) struct StoreError {
    text: String,
    is_refusal: bool,
}

impl StoreError {
    /// The store has answered that it does not do it.
    pub(super) fn refusal(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_refusal: true }
    }

    /// Whether the store has answered that it does not do it, so that nothing has changed.
    pub(crate) fn is_refusal(&self) -> bool {
        self.is_refusal
    }
}

impl From<String> for StoreError {
    fn from(text: String) -> Self {
        Self { text, is_refusal: false }
    }
}

impl From<&str> for StoreError {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<RemoteError> for StoreError {
    fn from(error: RemoteError) -> Self {
        Self { is_refusal: error.is_refusal(), text: error.to_string() }
    }
}
