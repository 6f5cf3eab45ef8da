//! Responses to challenges while an authority validates a name: over HTTP, in a TLS certificate, or in a DNS record.

use std::rc::Rc;
use std::sync::Arc;

use instant_acme::{ChallengeType, KeyAuthorization};
use sluice_config::{AcmeChallenge, DnsHook};
use sluice_core::http_challenges::HttpChallenges;
use sluice_core::tls::Terminators;

use super::failure::Failure;
use super::shared::{self, SharedAcme, SharedChallenge};
use super::{hook, made};

/// The ways to respond to challenges.
#[derive(Clone)]
pub(super) struct ChallengeMethods {
    pub(super) kind: AcmeChallenge,
    pub(super) hook: Option<DnsHook>,
    pub(super) challenges: Arc<HttpChallenges>,
    pub(super) terminators: Arc<Terminators>,
    /// The fleet whose members show the same.
    pub(super) shared: Option<Rc<SharedAcme>>,
}

/// A response that is published until it is dropped; a DNS record until [`Shown::withdraw`].
pub(super) enum Shown {
    Http {
        challenges: Arc<HttpChallenges>,
        token: String,
    },
    Tls {
        terminators: Arc<Terminators>,
        name: String,
    },
    Dns {
        hook: DnsHook,
        record: String,
        value: String,
    },
    /// By every member of the fleet, this one included.
    Fleet {
        _shown: shared::SharedAnswer,
    },
}

impl ChallengeMethods {
    /// The challenge type in the ACME protocol.
    pub(super) fn challenge_type(&self) -> ChallengeType {
        match self.kind {
            AcmeChallenge::Http01 => ChallengeType::Http01,
            AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            AcmeChallenge::Dns01 => ChallengeType::Dns01,
        }
    }

    /// Publishes the response for `name`, without `*.`.
    ///
    /// # Errors
    /// Why it cannot be published.
    pub(super) async fn show(
        &self,
        name: &str,
        token: &str,
        authorization: &KeyAuthorization,
    ) -> Result<Shown, Failure> {
        if let Some(fleet) = &self.shared {
            let challenge = match self.kind {
                AcmeChallenge::Http01 => Some(SharedChallenge::Http {
                    token: token.to_owned(),
                    authorization: authorization.as_str().to_owned(),
                }),
                AcmeChallenge::TlsAlpn01 => Some(SharedChallenge::tls(name, authorization.digest().as_ref())),
                AcmeChallenge::Dns01 => None,
            };
            if let Some(challenge) = challenge {
                return Ok(Shown::Fleet { _shown: fleet.show(challenge).await? });
            }
        }
        match self.kind {
            AcmeChallenge::Http01 => {
                self.challenges.add(token, authorization.as_str());
                Ok(Shown::Http { challenges: Arc::clone(&self.challenges), token: token.to_owned() })
            }
            AcmeChallenge::TlsAlpn01 => {
                let digest = authorization.digest();
                let certified = made::challenge(name, digest.as_ref()).map_err(Failure::from)?;
                for (_, terminator) in self.terminators.in_force().iter() {
                    terminator.store().begin_challenge(name, &certified);
                }
                Ok(Shown::Tls { terminators: Arc::clone(&self.terminators), name: name.to_owned() })
            }
            AcmeChallenge::Dns01 => {
                let hook = self.hook.clone().ok_or_else(|| Failure::new("no dns_hook is configured"))?;
                let (record, value) = (format!("_acme-challenge.{name}."), authorization.dns_value());
                let shown = Shown::Dns { hook: hook.clone(), record: record.clone(), value: value.clone() };
                if let Err(message) = hook::run(&hook, "present", &record, &value).await {
                    // The hook may have done part of its work.
                    shown.withdraw().await;
                    return Err(Failure::from(message));
                }
                tokio::time::sleep(std::time::Duration::from_millis(hook.wait_ms)).await;
                Ok(shown)
            }
        }
    }
}

impl Shown {
    /// Withdraws the response.
    pub(super) async fn withdraw(self) {
        if let Self::Dns { hook, record, value } = &self
            && let Err(message) = hook::run(hook, "cleanup", record, value).await
        {
            tracing::warn!(record, "the DNS record may still exist: {message}");
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
            Self::Dns { .. } | Self::Fleet { .. } => {}
        }
    }
}
