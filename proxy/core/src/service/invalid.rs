//! What is wrong with what a service is made from.

/// What is wrong with a text, a page or a state file of a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidService(String);

impl From<String> for InvalidService {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for InvalidService {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
