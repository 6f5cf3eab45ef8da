//! What a fuzzed exchange came to that it should not have.

/// What differs, in words for the report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Mismatch(String);

impl From<String> for Mismatch {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Mismatch {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
