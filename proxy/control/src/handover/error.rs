//! Why one process does not take over from another.

/// What failed on the way; the old process goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UpgradeError(String);

impl From<String> for UpgradeError {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for UpgradeError {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
