//! Errors of the command line.

/// What is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub(crate) struct UsageError(String);
