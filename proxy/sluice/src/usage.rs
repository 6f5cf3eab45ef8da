//! Errors of the command line, and the file that commands use without one.

/// The file that packages install.
pub(crate) const DEFAULT_FILE: &str = "/etc/sluice/sluice.yaml";

/// What is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub(crate) struct UsageError(String);
