//! A mistake before it is known where it stands.

/// What is wrong with a text of the configuration, and what to write in its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct Mistake(String);

impl From<Mistake> for String {
    fn from(mistake: Mistake) -> Self {
        mistake.0
    }
}
