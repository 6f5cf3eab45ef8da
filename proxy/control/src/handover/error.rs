//! Why one process does not take over from another.

/// What failed on the way; the old process goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub(crate) struct UpgradeError(String);
