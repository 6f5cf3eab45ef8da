//! Why a store has not done what it was asked.

use derive_more::{Display, From};

use crate::remote::RemoteError;

/// Why a store has not done what it was asked, in a sentence.
#[derive(Clone, Debug, Display, From)]
#[from(String, &str)]
pub(crate) struct StoreError(String);

impl From<RemoteError> for StoreError {
    fn from(error: RemoteError) -> Self {
        Self(error.to_string())
    }
}
