//! What is wrong with a command line.

/// What is wrong, and what to write in its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(String);

impl From<String> for UsageError {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for UsageError {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
