//! What shows that a name is ours, while an authority looks: an answer by HTTP, a certificate by TLS, a record by DNS.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use instant_acme::{ChallengeType, KeyAuthorization};
use sluice_config::{AcmeChallenge, DnsHook};
use sluice_core::tls::Terminators;
use sluice_http::{Method, RequestHead};

use super::failure::Failure;
use super::{hook, made};

/// Where an authority looks (RFC 8555 section 8.3); the token follows.
const PATH: &[u8] = b"/.well-known/acme-challenge/";
/// The type of what it is told there.
pub(crate) const CHALLENGE_TYPE: &str = "application/octet-stream";

/// What http listeners answer while an authority looks, by token. Of the whole process.
#[derive(Debug, Default)]
pub(crate) struct HttpChallenges {
    /// All that an exchange looks at while nothing is asked for.
    any: AtomicBool,
    by_token: ArcSwap<HashMap<String, Arc<str>>>,
}

impl HttpChallenges {
    /// The answer, if this is a request for one that is there.
    pub(crate) fn answer(&self, head: &RequestHead) -> Option<Arc<str>> {
        // Whoever has sent its token to an authority has stored it before, and the authority's request comes after.
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let token = head.path().strip_prefix(PATH)?;
        let is_read = matches!(head.method(), Method::Get | Method::Head);
        let token = std::str::from_utf8(token).ok().filter(|_| is_read)?;
        self.by_token.load().get(token).cloned()
    }

    /// Answers with this until [`Self::remove`].
    pub(super) fn add(&self, token: &str, authorization: &str) {
        self.change(|by_token| {
            by_token.insert(token.to_owned(), authorization.into());
        });
    }

    fn remove(&self, token: &str) {
        self.change(|by_token| {
            by_token.remove(token);
        });
    }

    /// Only the control thread does.
    fn change(&self, change: impl Fn(&mut HashMap<String, Arc<str>>)) {
        let mut by_token = HashMap::clone(&self.by_token.load());
        change(&mut by_token);
        let any = !by_token.is_empty();
        self.by_token.store(Arc::new(by_token));
        self.any.store(any, Ordering::Release);
    }
}

/// How an authority is shown that a name is ours.
#[derive(Clone)]
pub(super) struct Ways {
    pub(super) kind: AcmeChallenge,
    pub(super) hook: Option<DnsHook>,
    pub(super) challenges: Arc<HttpChallenges>,
    pub(super) terminators: Arc<Terminators>,
}

/// What is shown, until it is dropped; a record of DNS until [`Shown::withdraw`].
pub(super) enum Shown {
    Http { challenges: Arc<HttpChallenges>, token: String },
    Tls { terminators: Arc<Terminators>, name: String },
    Dns { hook: DnsHook, record: String, value: String },
}

impl Ways {
    /// What the authority calls it.
    pub(super) fn challenge_type(&self) -> ChallengeType {
        match self.kind {
            AcmeChallenge::Http01 => ChallengeType::Http01,
            AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            AcmeChallenge::Dns01 => ChallengeType::Dns01,
        }
    }

    /// Shows that `name`, without `*.`, is ours.
    ///
    /// # Errors
    /// Why it cannot be shown.
    pub(super) async fn show(
        &self,
        name: &str,
        token: &str,
        authorization: &KeyAuthorization,
    ) -> Result<Shown, Failure> {
        match self.kind {
            AcmeChallenge::Http01 => {
                self.challenges.add(token, authorization.as_str());
                Ok(Shown::Http { challenges: Arc::clone(&self.challenges), token: token.to_owned() })
            }
            AcmeChallenge::TlsAlpn01 => {
                let digest = authorization.digest();
                let certified = made::challenge(name, digest.as_ref()).map_err(Failure::new)?;
                for (_, terminator) in self.terminators.in_force().iter() {
                    terminator.store().begin_challenge(name, &certified);
                }
                Ok(Shown::Tls { terminators: Arc::clone(&self.terminators), name: name.to_owned() })
            }
            AcmeChallenge::Dns01 => {
                let hook = self.hook.clone().ok_or_else(|| Failure::new("there is no dns_hook"))?;
                let (record, value) = (format!("_acme-challenge.{name}."), authorization.dns_value());
                let shown = Shown::Dns { hook: hook.clone(), record: record.clone(), value: value.clone() };
                if let Err(message) = hook::run(&hook, "present", &record, &value).await {
                    // It may have done half of it.
                    shown.withdraw().await;
                    return Err(Failure::new(message));
                }
                tokio::time::sleep(std::time::Duration::from_millis(hook.wait_ms)).await;
                Ok(shown)
            }
        }
    }
}

impl Shown {
    /// Shows it no more.
    pub(super) async fn withdraw(self) {
        if let Self::Dns { hook, record, value } = &self
            && let Err(message) = hook::run(hook, "cleanup", record, value).await
        {
            tracing::warn!(record, "the DNS record may still be there: {message}");
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        match self {
            Self::Http { challenges, token } => challenges.remove(token),
            Self::Tls { terminators, name } => {
                for (_, terminator) in terminators.in_force().iter() {
                    terminator.store().end_challenge(name);
                }
            }
            Self::Dns { .. } => {}
        }
    }
}
