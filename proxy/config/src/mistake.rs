//! A mistake before it is known where it stands.

/// What is wrong with a text of the configuration, and what to write in its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Mistake(String);

impl From<String> for Mistake {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Mistake {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<Mistake> for String {
    fn from(mistake: Mistake) -> Self {
        mistake.0
    }
}
