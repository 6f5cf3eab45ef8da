//! Why a kernel assist is not used.

/// What the kernel refused, or did differently than it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct AssistError(String);
