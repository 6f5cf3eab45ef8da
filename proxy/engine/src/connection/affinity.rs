//! Requests of one client go to the same endpoint, by a cookie that sluice sets.
//!
//! The cookie is random and means nothing by itself. The endpoint follows from its hash, so nothing is stored: it is
//! the same in every worker and process, and with another set of endpoints only those clients move that must.

use sluice_config::{AffinityCookie, SameSite};
use sluice_core::cluster::{Cluster, hash_key};
use sluice_core::forwarded::make_request_id;

use super::Connection;
use super::account::Account;
use super::request::cookie;

/// Length of the random part, in hexadecimal digits.
const DIGITS: usize = 32;

/// The client's place among the endpoints.
pub(super) struct Affinity {
    /// Where it goes.
    pub(super) hash: u64,
    /// The value of Set-Cookie, if it has no cookie yet.
    pub(super) set_cookie: Option<Vec<u8>>,
}

impl Connection {
    /// The place of the client, if the cluster keeps clients at their endpoints.
    pub(super) fn affinity(&self, cluster: &Cluster, account: &Account) -> Option<Affinity> {
        let config = &cluster.config.affinity.as_ref()?.cookie;
        let head = &self.session.head;
        if let Some(token) = cookie(head, config.name.as_bytes()).filter(|token| is_token(token)) {
            return Some(Affinity { hash: hash_key(token), set_cookie: None });
        }
        let token = self.worker.with_random(make_request_id);
        let is_secure = self.scheme(account) == b"https";
        Some(Affinity { hash: hash_key(&token), set_cookie: Some(set_cookie(config, &token, is_secure)) })
    }
}

/// Any other value was not set by sluice: the application's cookie of the same name, or an attempt.
fn is_token(token: &[u8]) -> bool {
    token.len() == DIGITS && token.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn set_cookie(config: &AffinityCookie, token: &[u8; DIGITS], is_secure: bool) -> Vec<u8> {
    let mut value = [config.name.as_bytes(), b"=", token, b"; Path=/; HttpOnly"].concat();
    if let Some(ttl_ms) = config.ttl_ms {
        value.extend_from_slice(format!("; Max-Age={}", ttl_ms / 1000).as_bytes());
    }
    value.extend_from_slice(match config.same_site {
        SameSite::Lax => b"; SameSite=Lax",
        SameSite::Strict => b"; SameSite=Strict",
        SameSite::None => b"; SameSite=None",
    });
    if is_secure {
        value.extend_from_slice(b"; Secure");
    }
    value
}
