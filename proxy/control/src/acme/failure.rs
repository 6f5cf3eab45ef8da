//! Why there is no certificate, as reported by its source.

use std::fmt::Write;
use std::time::Duration;

use instant_acme::Problem;

use super::AcmeError;
use crate::outbound::with_causes;

/// Prefix of problem types (RFC 8555 section 6.7).
const TYPES: &str = "urn:ietf:params:acme:error:";

/// Why there is no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// Text for the log.
    pub(super) text: String,
    /// Consequence for the next attempt.
    pub(super) kind: Kind,
}

/// Consequence of a failure for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Ordinary back-off.
    Failed,
    /// The authority limits the rate; wait at least this long, if given.
    RateLimited(Option<Duration>),
    /// The authority does not know the account.
    NoAccount,
    /// The authority no longer accepts a nonce; another one may do at once (RFC 8555 section 6.5).
    StaleNonce,
    /// Another sluice process holds the lock.
    Busy,
}

impl Failure {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: Kind::Failed }
    }

    pub(super) fn busy() -> Self {
        Self { text: "another process is ordering certificates".to_owned(), kind: Kind::Busy }
    }

    /// Prefixes the text with `doing`.
    pub(super) fn while_doing(self, doing: &str) -> Self {
        Self { text: format!("{doing}: {}", self.text), ..self }
    }

    /// A problem document of the authority.
    pub(super) fn of_problem(problem: &Problem) -> Self {
        let kind = problem.r#type.as_deref().and_then(|kind| kind.strip_prefix(TYPES));
        let kind = match kind {
            Some("rateLimited") => Kind::RateLimited(None),
            Some("accountDoesNotExist") => Kind::NoAccount,
            Some("badNonce") => Kind::StaleNonce,
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

/// Its detail, then its type, then the same for its subproblems.
fn described(problem: &Problem) -> String {
    let mut text = problem.detail.clone().unwrap_or_else(|| "the authority gives no reason".to_owned());
    let add_type = |text: &mut String, kind: &Option<String>| {
        if let Some(kind) = kind {
            let _ = write!(text, " ({})", kind.strip_prefix(TYPES).unwrap_or(kind));
        }
    };
    add_type(&mut text, &problem.r#type);
    for part in &problem.subproblems {
        let _ = write!(text, "; {}", part.detail.as_deref().unwrap_or("another problem"));
        add_type(&mut text, &part.r#type);
    }
    // Control characters are replaced, so that the log has one line.
    text.replace(char::is_control, " ")
}
