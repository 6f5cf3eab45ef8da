//! Why a kernel assist is not used.

/// What the kernel refused, or did otherwise than it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AssistError(String);

impl From<String> for AssistError {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for AssistError {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
