//! What the routes of a configuration need beside it: the content of files, and helpers that are started once.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_config::{Auth, Config, JwtAuth};
use sluice_core::auth::jwt::{KeySet, KeyStore};
use sluice_core::auth::{Passwords, Users};

use crate::authority::Authority;
use crate::response::{ErrorPages, PagesError};

/// Maximum size of a file of keys, in bytes.
const KEYS_BYTES_MAX: u64 = 1 << 20;

/// Files and helpers, shared by the snapshots of a process.
#[derive(Clone, Default)]
pub struct Equipment {
    /// Bodies of sluice's own error responses.
    pub pages: ErrorPages,
    /// Users by file.
    pub(crate) users: BTreeMap<PathBuf, Arc<Users>>,
    /// Compares passwords; only if there are users.
    pub(crate) passwords: Option<Arc<Passwords>>,
    /// Keys for tokens, by where they are from.
    pub(crate) keys: BTreeMap<KeySource, Arc<KeyStore>>,
    /// Asks authorities; only if a route has one.
    pub(crate) authority: Option<Arc<dyn Authority>>,
}

/// Where keys are from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeySource {
    File { file: PathBuf, has_secrets: bool },
    Url(String),
}

impl KeySource {
    pub(crate) fn of(jwt: &JwtAuth) -> Self {
        match (&jwt.keys_file, &jwt.jwks_url) {
            (Some(file), _) => Self::File { file: file.clone(), has_secrets: has_secrets(jwt) },
            (None, url) => Self::Url(url.as_ref().map(ToString::to_string).unwrap_or_default()),
        }
    }
}

/// Secrets are never mixed with public keys: the configuration refuses it.
fn has_secrets(jwt: &JwtAuth) -> bool {
    jwt.algorithms.iter().any(|algorithm| algorithm.is_symmetric())
}

/// What cannot be loaded or started, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, PagesError)]
pub struct EquipmentError(String);

impl From<PagesError> for String {
    fn from(error: PagesError) -> Self {
        error.to_string()
    }
}

impl Equipment {
    /// Reads what the configuration names. Helpers continue from `before`, or are started when they are first needed.
    /// Blocks.
    ///
    /// # Errors
    /// Names the file that cannot be used, or the helper that cannot be started.
    pub fn load(
        config: &Config,
        before: Option<&Self>,
        start_authority: impl FnOnce() -> io::Result<Arc<dyn Authority>>,
    ) -> Result<Self, EquipmentError> {
        let pages = ErrorPages::load(&config.error_pages)?;
        let mut loaded = Self { pages, ..Self::default() };
        let mut asks = false;
        for (index, route) in config.routes.iter().enumerate() {
            let path = |key: &str| format!("routes[{index}].auth.{key}");
            match &route.auth {
                Some(Auth::Basic(basic)) => loaded.load_users(&basic.file, &path("basic.file"))?,
                Some(Auth::Jwt(jwt)) => {
                    loaded.load_keys(jwt, before, &path("jwt.keys_file"))?;
                    asks = true;
                }
                Some(Auth::Forward(_)) => asks = true,
                Some(Auth::Certificate(_)) | None => {}
            }
        }
        loaded.passwords = before.and_then(|before| before.passwords.clone());
        if loaded.passwords.is_none() && !loaded.users.is_empty() {
            loaded.passwords = Some(
                Passwords::start().map_err(|error| format!("auth.basic: cannot start a thread: {error}"))?,
            );
        }
        loaded.authority = before.and_then(|before| before.authority.clone());
        if loaded.authority.is_none() && asks {
            loaded.authority = Some(start_authority().map_err(|error| format!("auth: {error}"))?);
        }
        Ok(loaded)
    }

    fn load_users(&mut self, file: &Path, path: &str) -> Result<(), EquipmentError> {
        if !self.users.contains_key(file) {
            let users = Users::load(file).map_err(|error| format!("{path}: {}: {error}", file.display()))?;
            self.users.insert(file.to_owned(), Arc::new(users));
        }
        Ok(())
    }

    /// Keys of a URL continue from those before; the first requests fetch them.
    fn load_keys(&mut self, jwt: &JwtAuth, before: Option<&Self>, path: &str) -> Result<(), EquipmentError> {
        let source = KeySource::of(jwt);
        if self.keys.contains_key(&source) {
            return Ok(());
        }
        let keys = match &jwt.keys_file {
            Some(file) => {
                let problem = |what: String| format!("{path}: {}: {what}", file.display());
                let text = read_small(file).map_err(|error| problem(error.to_string()))?;
                let keys = KeySet::parse(&text, has_secrets(jwt));
                Arc::new(KeyStore::fixed(keys.map_err(|error| problem(error.to_string()))?))
            }
            None => {
                let before = before.and_then(|before| before.keys.get(&source));
                before.map_or_else(|| Arc::new(KeyStore::empty()), Arc::clone)
            }
        };
        self.keys.insert(source, keys);
        Ok(())
    }
}

/// The content of a file of keys.
fn read_small(file: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    std::fs::File::open(file)?.take(KEYS_BYTES_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > KEYS_BYTES_MAX {
        return Err(io::Error::other(format!("more than {KEYS_BYTES_MAX} bytes")));
    }
    Ok(text)
}
