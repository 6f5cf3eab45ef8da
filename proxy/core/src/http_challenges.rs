//! What listeners answer to an authority that looks whether a name is ours (ACME's HTTP-01).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use sluice_http::{Method, RequestHead};

/// Where an authority looks (RFC 8555 section 8.3); the token follows.
const PATH: &[u8] = b"/.well-known/acme-challenge/";
/// The type of what it is told there.
pub const CHALLENGE_TYPE: &str = "application/octet-stream";

/// What http listeners answer while an authority looks, by token. Of the whole process.
#[derive(Debug, Default)]
pub struct HttpChallenges {
    /// All that an exchange looks at while nothing is asked for.
    any: AtomicBool,
    by_token: ArcSwap<HashMap<String, Arc<str>>>,
}

impl HttpChallenges {
    /// The answer, if this is a request for one that is there.
    pub fn answer(&self, head: &RequestHead) -> Option<Arc<str>> {
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
    pub fn add(&self, token: &str, authorization: &str) {
        self.change(|by_token| {
            by_token.insert(token.to_owned(), authorization.into());
        });
    }

    /// Answers with it no more.
    pub fn remove(&self, token: &str) {
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
