//! Who sends a request: names and passwords by the Basic scheme (RFC 7617), and signed tokens.

mod hasher;
pub mod jwt;
mod recent;
mod users;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::{BASE64, BASE64_NOPAD};
pub use hasher::{Busy, Hasher};
use recent::RecentPasswords;
use tokio::time::timeout;
use users::verify;
pub use users::{Users, UsersError};

use crate::client_places::Clients;
use crate::clock::now_ms;

/// Maximum bytes of a name and a password together. bcrypt reads 72 of a password.
const CREDENTIALS_BYTES_MAX: usize = 1024;

/// Passwords of one client that wait. Others wait behind them, so it is a part of all that may; a page that loads its
/// parts at once, before its password is known, needs some.
const WAITING_OF_CLIENT_MAX: usize = 64;
/// How long a password waits: longer than people do, and than comparing those of a few others takes.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The check of passwords, shared by all routes and workers.
pub struct Passwords {
    hasher: Hasher,
    recent: Arc<RecentPasswords>,
    waiting: Arc<Clients>,
}

impl Passwords {
    /// Starts the threads that compare.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start() -> std::io::Result<Arc<Self>> {
        let (hasher, recent) = (Hasher::start()?, Arc::new(RecentPasswords::new()));
        Ok(Arc::new(Self { hasher, recent, waiting: Arc::default() }))
    }

    /// The user whose name and password the value of an Authorization field has; `None` if they are wrong or it has
    /// none. An unknown name takes as long as a wrong password.
    ///
    /// # Errors
    /// When too many passwords wait, of this client or of all, or for too long.
    pub async fn user_of(
        &self,
        users: &Users,
        authorization: &[u8],
        client: IpAddr,
    ) -> Result<Option<String>, Busy> {
        let Some((name, password)) = credentials(authorization) else { return Ok(None) };
        let (hash, is_known) = users.hash_of(&name);
        let mark = self.recent.mark(hash, &password);
        if is_known && self.recent.has(&mark, now_ms()) {
            return Ok(Some(name));
        }
        let _place = Clients::enter(&self.waiting, client, WAITING_OF_CLIENT_MAX).ok_or(Busy)?;
        let (recent, hash) = (Arc::clone(&self.recent), hash.to_owned());
        let compare = move || {
            // A browser sends many requests at once, of which the first may have been compared by now.
            if is_known && recent.has(&mark, now_ms()) {
                return true;
            }
            let is_right = verify(&hash, &password);
            if is_known && is_right {
                recent.note(mark, now_ms());
            }
            is_right
        };
        let comparing = self.hasher.compare(Box::new(compare))?;
        let is_right = timeout(WAIT_MAX, comparing).await.map_err(|_| Busy)?;
        Ok((is_right && is_known).then_some(name))
    }
}

/// The name and the password of an Authorization field.
fn credentials(authorization: &[u8]) -> Option<(String, Vec<u8>)> {
    let (scheme, rest) = authorization.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let encoded = rest.trim_ascii();
    let decoded = BASE64.decode(encoded).or_else(|_| BASE64_NOPAD.decode(encoded)).ok()?;
    if decoded.len() > CREDENTIALS_BYTES_MAX {
        return None;
    }
    let colon = memchr::memchr(b':', &decoded)?;
    let (name, password) = (&decoded[..colon], &decoded[colon + 1..]);
    // RFC 7617 2: no control characters.
    let name = std::str::from_utf8(name).ok().filter(|name| !name.chars().any(char::is_control))?;
    Some((name.to_owned(), password.to_vec()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_decoded() {
        let field = |text: &str| format!("Basic {}", BASE64.encode(text.as_bytes()));
        let read = |field: String| credentials(field.as_bytes());
        assert_eq!(read(field("ann:a:b")), Some(("ann".to_owned(), b"a:b".to_vec())));
        assert_eq!(read("bAsIc  YTpi ".to_owned()), Some(("a".to_owned(), b"b".to_vec())));
        assert_eq!(read("Basic YTpiYg".to_owned()), Some(("a".to_owned(), b"bb".to_vec())));
        for wrong in ["", "Basic", "Basic ", "Basic !", "Bearer YTpi", "Basic YWI="] {
            assert_eq!(read(wrong.to_owned()), None, "{wrong}");
        }
        assert_eq!(read(field("a\nb:c")), None);
        assert_eq!(read(field(&format!("a:{}", "x".repeat(CREDENTIALS_BYTES_MAX)))), None);
    }
}
