//! A mistake whose position in the file is not known yet.

/// What is wrong with a piece of configuration text, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct Mistake(String);

impl From<Mistake> for String {
    fn from(mistake: Mistake) -> Self {
        mistake.0
    }
}
