//! The error for invalid parts of a service.

/// What is wrong with a text, a page or a state file of a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct InvalidService(String);
