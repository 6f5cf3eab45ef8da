//! The account with an authority (RFC 8555 section 7.3): created once, stored, and reused.

use crate::acme::AcmeError;
use std::cell::RefCell;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use data_encoding::{BASE64URL_NOPAD, Encoding};
use instant_acme::{Account, AccountCredentials, ExternalAccountKey, NewAccount};
use serde::Deserialize;
use sluice_config as config;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::client::{Client, RetryAfter};
use super::failure::Failure;
use super::folder::{Folder, Lock};
use super::shared::{FleetLock, SharedAcme};

/// Maximum bytes of the key file of an external account.
const HMAC_FILE_BYTES_MAX: u64 = 4096;

/// An authority, as configured.
pub(super) struct Authority {
    pub(super) config: config::Acme,
    pub(super) folder: Folder,
    /// What it shares with a fleet.
    pub(super) shared: Option<Rc<SharedAcme>>,
    session: Mutex<Option<Session>>,
    /// Shared by all running orders.
    lock: RefCell<Weak<Lock>>,
    /// The same for the fleet.
    fleet_lock: Mutex<Weak<FleetLock>>,
}

/// An account that the authority knows.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) account: Account,
    pub(super) told: Arc<RetryAfter>,
}

/// The part of a stored account that identifies its authority.
#[derive(Deserialize)]
struct StoredAccount {
    directory: Option<String>,
}

impl Authority {
    pub(super) fn new(config: config::Acme, folder: Folder, shared: Option<Rc<SharedAcme>>) -> Self {
        let (session, lock, fleet_lock) = Default::default();
        Self { config, folder, shared, session, lock, fleet_lock }
    }

    /// Keeps other sluice processes from ordering certificates until every clone of this lock is dropped.
    ///
    /// # Errors
    /// When another process holds the lock.
    pub(super) fn lock(&self) -> Result<Rc<Lock>, Failure> {
        if let Some(held) = self.lock.borrow().upgrade() {
            return Ok(held);
        }
        let lock = self.folder.lock().map_err(|error| Failure::new(format!("the lock: {error}")))?;
        let lock = Rc::new(lock.ok_or_else(Failure::busy)?);
        *self.lock.borrow_mut() = Rc::downgrade(&lock);
        Ok(lock)
    }

    /// Keeps the other members of the fleet from ordering certificates until every clone of this lock is dropped. What they
    /// have stored before is known then. `None` without a fleet.
    ///
    /// # Errors
    /// When another member holds the lock, or the store is away.
    pub(super) async fn lock_fleet(&self) -> Result<Option<Rc<FleetLock>>, Failure> {
        let Some(shared) = &self.shared else { return Ok(None) };
        let mut known = self.fleet_lock.lock().await;
        if let Some(held) = known.upgrade() {
            return Ok(Some(held));
        }
        let lock = Rc::new(shared.lock(&self.folder.authority).await?);
        *known = Rc::downgrade(&lock);
        Ok(Some(lock))
    }

    /// Returns the account; creates it if there is none. Requires the lock, so that two processes do not create two
    /// accounts.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn session(&self, _lock: &Lock) -> Result<Session, Failure> {
        let mut session = self.session.lock().await;
        if let Some(session) = &*session {
            return Ok(session.clone());
        }
        let opened = self.open().await.map_err(|failure| failure.while_doing("the account"))?;
        *session = Some(opened.clone());
        Ok(opened)
    }

    async fn open(&self) -> Result<Session, Failure> {
        let ca_file = self.config.ca_file.clone();
        let client = blocking(move || Client::new(ca_file.as_deref())).await?.map_err(Failure::from)?;
        let told = Arc::clone(client.told());
        let account = match self.restored(client.clone()).await? {
            Some(account) => account,
            None => self.made(client).await?,
        };
        Ok(Session { account, told })
    }

    async fn restored(&self, client: Client) -> Result<Option<Account>, Failure> {
        let folder = self.folder.clone();
        let shared = self.shared.as_ref().and_then(|shared| shared.account(&self.folder.authority));
        if let Some(shared) = shared.clone() {
            let folder = folder.clone();
            let kept = blocking(move || folder.keep_account(&shared)).await?;
            kept.map_err(|error| Failure::new(format!("the account cannot be stored: {error}")))?;
        }
        let kept = blocking(move || folder.account()).await?;
        let Some(bytes) = kept.map_err(|error| Failure::new(error.to_string()))? else {
            return Ok(None);
        };
        let url = self.config.directory.url();
        let is_ours = serde_json::from_slice(&bytes)
            .is_ok_and(|kept: StoredAccount| kept.directory.as_deref() == Some(url));
        let credentials = serde_json::from_slice::<AccountCredentials>(&bytes);
        match credentials {
            Ok(credentials) if is_ours => {
                if let Some(fleet) = self.shared.as_ref().filter(|_| shared.is_none()) {
                    fleet.put_account(&self.folder.authority, &bytes).await?;
                }
                Ok(Some(Account::builder_with_http(Box::new(client)).from_credentials(credentials).await?))
            }
            _ => {
                self.set_aside("the account file is damaged").await;
                Ok(None)
            }
        }
    }

    async fn made(&self, client: Client) -> Result<Account, Failure> {
        let contacts: Vec<&str> = self.config.contacts.iter().map(String::as_str).collect();
        let wanted =
            NewAccount { contact: &contacts, terms_of_service_agreed: true, only_return_existing: false };
        let external = self.config.external_account.clone();
        let external = blocking(move || external.as_ref().map(external_key).transpose()).await?;
        let external = external.map_err(Failure::from)?;
        let url = self.config.directory.url().to_owned();
        let builder = Account::builder_with_http(Box::new(client));
        let (account, credentials) = builder.create(&wanted, url, external.as_ref()).await?;
        let bytes =
            serde_json::to_vec_pretty(&credentials).map_err(|error| Failure::new(error.to_string()))?;
        if let Some(shared) = &self.shared {
            shared.put_account(&self.folder.authority, &bytes).await?;
        }
        let folder = self.folder.clone();
        let kept = blocking(move || folder.keep_account(&bytes)).await?;
        kept.map_err(|error| Failure::new(format!("the account cannot be stored: {error}")))?;
        tracing::info!(authority = self.folder.authority, id = account.id(), "created an ACME account");
        Ok(account)
    }

    /// Sets the account aside so that the next certificate creates a new one, if this account is still in use. For an
    /// account that the authority no longer knows.
    pub(super) async fn forget(&self, account: &Account) {
        let mut session = self.session.lock().await;
        if session.take_if(|session| session.account.id() == account.id()).is_some() {
            self.set_aside("the authority does not know the account").await;
        }
    }

    async fn set_aside(&self, why: &str) {
        if let Some(shared) = &self.shared {
            shared.remove_account(&self.folder.authority).await;
        }
        let folder = self.folder.clone();
        let aside = blocking(move || folder.set_account_aside()).await;
        let authority = &self.folder.authority;
        match aside.map_or_else(|failure| Err(failure.text), |done| done.map_err(|error| error.to_string())) {
            Ok(aside) => {
                tracing::warn!(authority, aside = %aside.display(), "renamed the ACME account file: {why}");
            }
            Err(error) => tracing::warn!(authority, "cannot rename the ACME account file: {error}; {why}"),
        }
    }
}

/// Runs a function that accesses the disk, which may block.
///
/// # Errors
/// When it panics.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    spawn_blocking(work).await.map_err(|error| Failure::new(format!("the task failed: {error}")))
}

fn external_key(account: &config::ExternalAccount) -> Result<ExternalAccountKey, AcmeError> {
    let said =
        |what: AcmeError| format!("acme.external_account.hmac_file: {}: {what}", account.hmac_file.display());
    let text = read(&account.hmac_file).map_err(said)?;
    let key = decoded(text.trim()).ok_or_else(|| said("is not base64url".into()))?;
    Ok(ExternalAccountKey::new(account.key_id.clone(), &key))
}

fn read(file: &Path) -> Result<String, AcmeError> {
    let bytes = sluice_core::durable::read(file, HMAC_FILE_BYTES_MAX).map_err(|error| error.to_string())?;
    String::from_utf8(bytes.ok_or("does not exist")?).map_err(|error| error.to_string().into())
}

/// Authorities show the key with or without padding, and some in the other base64 alphabet.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let plain: String = text.trim_end_matches('=').replace('+', "-").replace('/', "_");
    let encoding: &Encoding = &BASE64URL_NOPAD;
    encoding.decode(plain.as_bytes()).ok().filter(|key| !key.is_empty())
}
