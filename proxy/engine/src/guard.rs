//! What a route needs to know who sends a request.

use std::sync::Arc;

use sluice_config::{Auth, ForwardAuth};
use sluice_core::auth::{Passwords, Users};
use tokio::sync::Semaphore;

use crate::authority::Authority;
use crate::equipment::Equipment;

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
        };
        guard.unwrap_or(Self::Closed)
    }
}
