//! Why there is no certificate, in the words of whoever knows.

use std::error::Error;
use std::fmt::Write;
use std::time::Duration;

use instant_acme::Problem;

use super::AcmeError;

/// What the types of problems begin with (RFC 8555 section 6.7).
const TYPES: &str = "urn:ietf:params:acme:error:";

/// Why there is no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// What the log says.
    pub(super) text: String,
    /// What it means for the next try.
    pub(super) kind: Kind,
}

/// What a failure means for the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing in particular.
    Failed,
    /// The authority is asked too often; not before this has passed, if it says so.
    RateLimited(Option<Duration>),
    /// The authority does not know the account.
    NoAccount,
    /// Another process of ours is at it.
    Busy,
}

impl Failure {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: Kind::Failed }
    }

    pub(super) fn busy() -> Self {
        Self { text: "another process is at it".to_owned(), kind: Kind::Busy }
    }

    /// The same, `doing` said first.
    pub(super) fn while_doing(self, doing: &str) -> Self {
        Self { text: format!("{doing}: {}", self.text), ..self }
    }

    /// What an authority has said.
    pub(super) fn of_problem(problem: &Problem) -> Self {
        let kind = problem.r#type.as_deref().and_then(|kind| kind.strip_prefix(TYPES));
        let kind = match kind {
            Some("rateLimited") => Kind::RateLimited(None),
            Some("accountDoesNotExist") => Kind::NoAccount,
            _ => Kind::Failed,
        };
        Self { text: described(problem), kind }
    }
}

impl From<AcmeError> for Failure {
    fn from(error: AcmeError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<instant_acme::Error> for Failure {
    fn from(error: instant_acme::Error) -> Self {
        match &error {
            instant_acme::Error::Api(problem) => Self::of_problem(problem),
            error => Self::new(with_causes(error)),
        }
    }
}

/// Its words, then its type, then the same of the problems in it.
fn described(problem: &Problem) -> String {
    let mut text = problem.detail.clone().unwrap_or_else(|| "the authority does not say why".to_owned());
    let add_type = |text: &mut String, kind: &Option<String>| {
        if let Some(kind) = kind {
            let _ = write!(text, " ({})", kind.strip_prefix(TYPES).unwrap_or(kind));
        }
    };
    add_type(&mut text, &problem.r#type);
    for part in &problem.subproblems {
        let _ = write!(text, "; {}", part.detail.as_deref().unwrap_or("and another"));
        add_type(&mut text, &part.r#type);
    }
    // It goes into the log as one line.
    text.replace(char::is_control, " ")
}

/// An error with what it came of, each said once.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            let _ = write!(text, ": {said}");
        }
        source = cause.source();
    }
    text
}
