//! A difference found in a fuzzed exchange.

/// The difference, in words for the report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub(super) struct Mismatch(String);
