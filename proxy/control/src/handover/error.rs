//! Why a handover failed.

/// A failed step; the old process continues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub(crate) struct UpgradeError(String);
