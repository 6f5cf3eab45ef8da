//! Responses to ACME HTTP-01 challenges, served by http listeners.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use sluice_http::{Method, RequestHead};

/// Path prefix of challenges (RFC 8555 section 8.3); the token follows.
const PATH: &[u8] = b"/.well-known/acme-challenge/";
/// Content type of the response.
pub const CHALLENGE_TYPE: &str = "application/octet-stream";

/// The responses of http listeners to pending challenges, by token. One per process.
#[derive(Debug, Default)]
pub struct HttpChallenges {
    /// The only field that an exchange reads while no challenge is pending.
    any: AtomicBool,
    by_token: ArcSwap<HashMap<String, Arc<str>>>,
}

impl HttpChallenges {
    /// The response, if this request asks for a pending challenge.
    pub fn answer(&self, head: &RequestHead) -> Option<Arc<str>> {
        // The token is stored before the authority learns it, and the authority's request comes later.
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let token = head.path().strip_prefix(PATH)?;
        let is_read = matches!(head.method(), Method::Get | Method::Head);
        let token = std::str::from_utf8(token).ok().filter(|_| is_read)?;
        self.by_token.load().get(token).cloned()
    }

    /// Serves this response until [`Self::remove`].
    pub fn add(&self, token: &str, authorization: &str) {
        self.change(|by_token| {
            by_token.insert(token.to_owned(), authorization.into());
        });
    }

    /// Stops serving it.
    pub fn remove(&self, token: &str) {
        self.change(|by_token| {
            by_token.remove(token);
        });
    }

    /// Called by the control thread only.
    fn change(&self, change: impl Fn(&mut HashMap<String, Arc<str>>)) {
        let mut by_token = HashMap::clone(&self.by_token.load());
        change(&mut by_token);
        let any = !by_token.is_empty();
        self.by_token.store(Arc::new(by_token));
        self.any.store(any, Ordering::Release);
    }
}
