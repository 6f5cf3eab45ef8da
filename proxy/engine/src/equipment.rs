//! What the routes of a configuration need beside it: the content of files, and helpers that are started once.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use sluice_config::{Auth, Config};
use sluice_core::auth::{Passwords, Users};

use crate::authority::Authority;
use crate::response::{ErrorPages, PagesError};

/// Files and helpers, shared by the snapshots of a process.
#[derive(Clone, Default)]
pub struct Equipment {
    /// Bodies of sluice's own error responses.
    pub pages: ErrorPages,
    /// Users by file.
    pub(crate) users: BTreeMap<PathBuf, Arc<Users>>,
    /// Compares passwords; only if there are users.
    pub(crate) passwords: Option<Arc<Passwords>>,
    /// Asks authorities; only if a route has one.
    pub(crate) authority: Option<Arc<dyn Authority>>,
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
        let mut users = BTreeMap::new();
        let mut asks = false;
        for (index, route) in config.routes.iter().enumerate() {
            match &route.auth {
                Some(Auth::Basic(basic)) if !users.contains_key(&basic.file) => {
                    let path = || format!("routes[{index}].auth.basic.file: {}", basic.file.display());
                    let loaded = Users::load(&basic.file).map_err(|error| format!("{}: {error}", path()))?;
                    users.insert(basic.file.clone(), Arc::new(loaded));
                }
                Some(Auth::Forward(_)) => asks = true,
                Some(Auth::Basic(_)) | None => {}
            }
        }
        let mut passwords = before.and_then(|before| before.passwords.clone());
        if passwords.is_none() && !users.is_empty() {
            passwords = Some(
                Passwords::start().map_err(|error| format!("auth.basic: cannot start a thread: {error}"))?,
            );
        }
        let mut authority = before.and_then(|before| before.authority.clone());
        if authority.is_none() && asks {
            authority = Some(start_authority().map_err(|error| format!("auth.forward: {error}"))?);
        }
        Ok(Self { pages, users, passwords, authority })
    }
}
