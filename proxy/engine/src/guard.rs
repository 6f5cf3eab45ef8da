//! What a route needs to know who sends a request.

use std::sync::Arc;

use sluice_config::{Auth, CertificateAuth, ForwardAuth};
use sluice_core::auth::jwt::Tokens;
use sluice_core::auth::{Passwords, Users};
use tokio::sync::Semaphore;

use crate::authority::Authority;
use crate::equipment::{Equipment, KeySource};

/// The way of a route.
pub(crate) enum Guard {
    /// By name and password.
    Basic {
        users: Arc<Users>,
        passwords: Arc<Passwords>,
        /// The value of WWW-Authenticate.
        challenge: Vec<u8>,
    },
    /// By another server.
    Forward {
        config: Arc<ForwardAuth>,
        authority: Arc<dyn Authority>,
        /// For requests that wait.
        room: Semaphore,
    },
    /// By a signed token.
    Token {
        tokens: Box<Tokens>,
        /// Fetches keys.
        authority: Arc<dyn Authority>,
    },
    /// By the client's certificate.
    Certificate(CertificateAuth),
    /// What it needs was not loaded, so nobody passes.
    Closed,
}

impl Guard {
    /// The guard of a route with `auth`.
    pub(crate) fn new(auth: &Auth, equipment: &Equipment) -> Self {
        let guard = match auth {
            Auth::Basic(basic) => {
                let users = equipment.users.get(&basic.file).zip(equipment.passwords.as_ref());
                users.map(|(users, passwords)| Self::Basic {
                    users: Arc::clone(users),
                    passwords: Arc::clone(passwords),
                    challenge: format!("Basic realm=\"{}\", charset=\"UTF-8\"", basic.realm).into_bytes(),
                })
            }
            Auth::Forward(forward) => equipment.authority.as_ref().map(|authority| Self::Forward {
                config: Arc::new(forward.clone()),
                authority: Arc::clone(authority),
                room: Semaphore::new(forward.waiting_max),
            }),
            Auth::Jwt(jwt) => {
                let keys = equipment.keys.get(&KeySource::of(jwt)).zip(equipment.authority.as_ref());
                keys.map(|(keys, authority)| Self::Token {
                    tokens: Box::new(Tokens::new((**jwt).clone(), Arc::clone(keys))),
                    authority: Arc::clone(authority),
                })
            }
            Auth::Certificate(wanted) => Some(Self::Certificate(wanted.clone())),
        };
        guard.unwrap_or(Self::Closed)
    }
}
