//! What the routes of a configuration need beside it: the content of files, and helpers that are started once.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_config::{Access, Auth, Config, JwtAuth, Route};
use sluice_core::access::{NetworkList, NetworkLists};
use sluice_core::auth::jwt::{KeySet, KeyStore};
use sluice_core::auth::{Passwords, Users};
use sluice_core::small_file;

use crate::authority::Authority;
use crate::files::can_open_below;
use crate::response::{ErrorPages, PagesError};

/// Maximum size of a file of keys, in bytes.
const KEYS_BYTES_MAX: u64 = 1 << 20;

/// Files and helpers, shared by the snapshots of a process.
#[derive(Clone, Default)]
pub struct Equipment {
    /// Bodies of sluice's own error responses.
    pub pages: ErrorPages,
    /// The same for routes that have pages of their own, by name.
    pub(crate) pages_of_routes: BTreeMap<String, ErrorPages>,
    /// Networks by file.
    pub networks: NetworkLists,
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

/// Why files of a route cannot be opened at all.
fn unopenable(route: &Route, path: &str) -> Option<EquipmentError> {
    let of_files = route.files.iter().map(|files| &files.root);
    let of_application =
        route.sendfile.iter().flat_map(|sendfile| sendfile.roots.iter().chain(sendfile.accel.values()));
    let mut folders = of_files.chain(of_application);
    let error = folders.find_map(|folder| can_open_below(folder).err())?;
    Some(format!("{path}: files cannot be opened: openat2(2), of Linux 5.6, is denied here: {error}").into())
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
        let mut loaded = Self::read(config, before)?;
        loaded.passwords = before.and_then(|before| before.passwords.clone());
        if loaded.passwords.is_none() && !loaded.users.is_empty() {
            loaded.passwords = Some(
                Passwords::start().map_err(|error| format!("auth.basic: cannot start a thread: {error}"))?,
            );
        }
        loaded.authority = before.and_then(|before| before.authority.clone());
        let asks = |route: &Route| matches!(route.auth, Some(Auth::Forward(_) | Auth::Jwt(_)));
        if loaded.authority.is_none() && config.routes.iter().any(asks) {
            loaded.authority = Some(start_authority().map_err(|error| format!("auth: {error}"))?);
        }
        Ok(loaded)
    }

    /// Reads the files that the configuration names, and starts nothing. Blocks.
    ///
    /// # Errors
    /// Names each file that cannot be used, in a line of its own.
    pub fn read(config: &Config, before: Option<&Self>) -> Result<Self, EquipmentError> {
        let mut problems = Vec::new();
        let pages = ErrorPages::load(&config.error_pages).unwrap_or_else(|error| {
            problems.push(EquipmentError::from(error));
            ErrorPages::default()
        });
        let mut loaded = Self { pages, ..Self::default() };
        for (index, route) in config.routes.iter().enumerate() {
            let path = format!("routes[{index}]");
            problems.extend(loaded.load_networks(route.access.as_ref(), &format!("{path}.access")));
            problems.extend(loaded.load_pages(route, &path).err());
            problems.extend(unopenable(route, &path));
            let of_auth = match &route.auth {
                Some(Auth::Basic(basic)) => {
                    loaded.load_users(&basic.file, &format!("{path}.auth.basic.file"))
                }
                Some(Auth::Jwt(jwt)) => loaded.load_keys(jwt, before, &format!("{path}.auth.jwt.keys_file")),
                Some(Auth::Forward(_) | Auth::Certificate(_)) | None => Ok(()),
            };
            problems.extend(of_auth.err());
        }
        for (index, rule) in config.access.iter().enumerate() {
            problems.extend(loaded.load_networks(Some(&rule.access), &format!("access[{index}]")));
        }
        if problems.is_empty() {
            return Ok(loaded);
        }
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Err(lines.join("\n").into())
    }

    fn load_pages(&mut self, route: &Route, path: &str) -> Result<(), EquipmentError> {
        if !route.error_pages.is_empty() {
            let pages = self.pages.with(&route.error_pages, &format!("{path}."))?;
            self.pages_of_routes.insert(route.name.clone(), pages);
        }
        Ok(())
    }

    fn load_networks(&mut self, access: Option<&Access>, path: &str) -> Vec<EquipmentError> {
        let mut problems = Vec::new();
        for (key, file) in access.into_iter().flat_map(Access::files) {
            if self.networks.contains_key(file) {
                continue;
            }
            match NetworkList::load(file) {
                Ok(list) => _ = self.networks.insert(file.clone(), Arc::new(list)),
                Err(error) => problems.push(format!("{path}.{key}: {}: {error}", file.display()).into()),
            }
        }
        problems
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
                let text =
                    small_file::read(file, KEYS_BYTES_MAX).map_err(|error| problem(error.to_string()))?;
                let keys =
                    KeySet::parse(&text, has_secrets(jwt)).map_err(|error| problem(error.to_string()))?;
                if keys.is_empty() {
                    let what = "no key that can be used: RSA from 2048 bits, P-256, P-384, Ed25519, or a secret as long \
                                as its hash";
                    return Err(problem(what.to_owned()).into());
                }
                Arc::new(KeyStore::fixed(keys))
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
