//! Users and their passwords, as `htpasswd -B` writes them.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use argon2::Argon2;
use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc::PasswordHash;

use crate::small_file;

/// Maximum number of users of one file.
const USERS_MAX: usize = 100_000;
/// Maximum bytes of a file.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The maximum cost of bcrypt: each step doubles the time, and 14 takes about a second.
const COST_MAX: u32 = 16;
/// Maximum memory of argon2, in KiB: each password that is compared takes as much.
const MEMORY_KIB_MAX: u32 = 256 << 10;
/// Maximum number of passes of argon2 over its memory.
const PASSES_MAX: u32 = 32;

/// What is wrong with a file of users.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct UsersError(String);

/// The users of one file.
pub struct Users {
    hashes: HashMap<String, String>,
    /// The hash that a password is compared with if the user is unknown, so that the answer takes as long.
    some: Option<String>,
}

/// It has secrets.
impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} users", self.hashes.len())
    }
}

impl Users {
    /// Reads a file. Blocks.
    ///
    /// # Errors
    /// Why it cannot be used, with the line.
    pub fn load(file: &Path) -> Result<Self, UsersError> {
        let text = small_file::read_text(file, FILE_BYTES_MAX).map_err(|error| error.to_string())?;
        Self::parse(&text)
    }

    /// Reads lines of a name, a colon and a hash. Empty lines, and those that begin with #, are left out.
    ///
    /// # Errors
    /// Which line is wrong, and what to write; never the line itself.
    fn parse(text: &str) -> Result<Self, UsersError> {
        let mut hashes = HashMap::new();
        let mut some = None;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what: &str| format!("line {}: {what}", number + 1);
            let (name, hash) = line.split_once(':').ok_or_else(|| wrong("no colon; write name:hash"))?;
            if name.is_empty() || name.chars().any(char::is_control) {
                return Err(wrong("no name before the colon; write name:hash").into());
            }
            // What follows another colon is a comment to Apache and nginx.
            let hash = hash.split(':').next().unwrap_or_default();
            check_hash(hash).map_err(wrong)?;
            some.get_or_insert_with(|| hash.to_owned());
            if hashes.insert(name.to_owned(), hash.to_owned()).is_some() {
                return Err(wrong("the name has a line before; remove one").into());
            }
            if hashes.len() > USERS_MAX {
                return Err(format!("more than {USERS_MAX} users").into());
            }
        }
        if hashes.is_empty() {
            return Err("no users; write a line with htpasswd -B".into());
        }
        Ok(Self { hashes, some })
    }

    /// The hash of a user, and whether there is this user: if not, it is that of another, and the answer is no.
    pub(super) fn hash_of(&self, name: &str) -> (&str, bool) {
        match self.hashes.get(name) {
            Some(hash) => (hash, true),
            None => (self.some.as_deref().unwrap_or_default(), false),
        }
    }
}

/// Whether this is the password of a hash. Takes long, on purpose.
pub(super) fn verify(hash: &str, password: &[u8]) -> bool {
    if hash.starts_with("$argon2") {
        let parsed = PasswordHash::new(hash);
        return parsed.is_ok_and(|parsed| Argon2::default().verify_password(password, &parsed).is_ok());
    }
    bcrypt::verify(password, hash).unwrap_or(false)
}

fn check_hash(hash: &str) -> Result<(), &'static str> {
    if hash.starts_with("$argon2") {
        let parsed = PasswordHash::new(hash).map_err(|_| "this is not a hash of argon2")?;
        if parsed.salt.is_none() || parsed.hash.is_none() {
            return Err("this is not a hash of argon2");
        }
        let parameters = argon2::Params::try_from(&parsed).map_err(|_| "this is not a hash of argon2")?;
        if parameters.m_cost() > MEMORY_KIB_MAX || parameters.t_cost() > PASSES_MAX {
            return Err("this hash takes too much memory or time; write at most 256 MiB and 32 passes");
        }
        return Ok(());
    }
    if !["$2a$", "$2b$", "$2y$"].iter().any(|kind| hash.starts_with(kind)) {
        return Err("the password is not hashed with bcrypt or argon2; write the line with htpasswd -B");
    }
    let parts = hash.parse::<bcrypt::HashParts>().map_err(|_| "this is not a hash of bcrypt")?;
    if hash.len() != BCRYPT_BYTES {
        return Err("this is not a hash of bcrypt");
    }
    match parts.get_cost() {
        4..=COST_MAX => Ok(()),
        _ => Err("this cost of bcrypt takes too long; write one up to 16"),
    }
}

/// The length of a hash of bcrypt: kind, cost, 22 characters of salt, 31 of hash.
const BCRYPT_BYTES: usize = 60;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// By `htpasswd -nbB -C 4 ann secret`, of apache2-utils.
    const ANN: &str = "ann:$2y$04$b98P4d49Kb8Twxx4H/x0cOJJ58hM9QOnqQUA/EuHIOp2EJ2vWiKFK";

    /// By `echo -n geheim | argon2 somesalt -id -t 1 -k 64 -p 1 -e`.
    const BOB: &str = "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$qASOLaGX+P0epRpm1t9sb89XH6vB26z1m7LoiG0+sDM";

    #[test]
    fn hashes_are_checked_with_their_line() {
        for (text, wanted) in [
            ("", "no users"),
            ("# nobody\n\n", "no users"),
            ("ann", "line 1: no colon"),
            (":x", "line 1: no name"),
            ("ann:secret", "line 1: the password is not hashed"),
            ("ann:$apr1$x$y", "line 1: the password is not hashed"),
            ("ann:$2y$04$short", "line 1: this is not a hash of bcrypt"),
            ("ann:$argon2id$v=19$m=65536,t=3,p=4", "line 1: this is not a hash of argon2"),
            (&format!("{ANN}\n{ANN}"), "line 2: the name has a line before"),
            (&ANN.replace("$04$", "$20$"), "line 1: this cost"),
            (
                "a:$argon2id$v=19$m=4000000,t=3,p=4$c29tZXNhbHQ$c29tZXNhbHRzb21lc2FsdHNvbWVzYWx0c29tZXNhbA",
                "line 1: this hash takes too much memory",
            ),
        ] {
            let error = Users::parse(text).expect_err(text).to_string();
            assert!(error.starts_with(wanted), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(Users::parse(&format!("# all\n\n{ANN}\r\n")).is_ok());
    }

    #[test]
    fn passwords_are_compared() {
        let users = Users::parse(&format!("{ANN}\nbob:{BOB}\n")).unwrap();
        for (name, password, right) in [
            ("ann", "secret", true),
            ("ann", "geheim", false),
            ("ann", "", false),
            ("bob", "geheim", true),
            ("bob", "secret", false),
        ] {
            let (hash, is_known) = users.hash_of(name);
            assert_eq!((verify(hash, password.as_bytes()), is_known), (right, true), "{name} {password}");
        }
        assert!(!users.hash_of("eve").1 && !users.hash_of("eve").0.is_empty());
        assert!(!format!("{users:?}").contains("ann"));
    }
}
