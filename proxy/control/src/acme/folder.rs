//! What outlives the process: the account, and each certificate with its key in a file. Blocks.
//!
//! Files are there whole or not at all, and for nobody else to read. Each authority has a folder of its own, so that a
//! certificate of a test never stands in for another.

use crate::acme::AcmeError;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use sluice_config::{self as config, AcmeDirectory, Config, is_issuable};
use sluice_core::durable;
use sluice_core::tls::{Certificate, Pair, load, now_unix_s};

/// What the source of its certificates begins with, as the status page says.
pub(super) const SOURCE: &str = "acme ";
const ENDING: &str = ".pem";
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Bytes of an account's file; it is a key and two URLs.
const ACCOUNT_BYTES_MAX: u64 = 64 << 10;

/// The folder of one authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folder {
    root: PathBuf,
    /// The authority, as a word of a log line.
    pub(super) authority: String,
}

/// Held while certificates are asked for; no other process does so meanwhile.
#[derive(Debug)]
pub(super) struct Lock(#[allow(dead_code, reason = "it is unlocked by being closed")] File);

impl Folder {
    /// Where a configuration keeps what its authority issues.
    ///
    /// # Errors
    /// When it names no place, and nobody has made one.
    pub(super) fn of(config: &Config, acme: &config::Acme) -> Result<Self, AcmeError> {
        let beside = || config.services.state_file.as_ref()?.parent().map(|folder| folder.join("acme"));
        let made = || std::env::var_os("STATE_DIRECTORY").filter(|folder| !folder.is_empty());
        let made = || made().map(|folder| PathBuf::from(folder).join("acme"));
        let root = acme.state_folder.clone().or_else(beside).or_else(made);
        let root =
            root.ok_or("acme.state_folder: is missing; write a folder for account and certificates")?;
        let authority = word(&acme.directory);
        Ok(Self { root: root.join(&authority), authority })
    }

    /// Makes what is not there, and closes what is open to others.
    ///
    /// # Errors
    /// What cannot be made, with its name.
    pub(super) fn make(&self) -> Result<(), AcmeError> {
        let certificates = self.certificates();
        let said = |error: io::Error| format!("acme.state_folder: {}: {error}", certificates.display());
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&certificates).map_err(said)?;
        for folder in [&self.root, &certificates] {
            let mode = fs::metadata(folder).map_err(said)?.permissions().mode();
            if mode & 0o077 != 0 {
                fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE)).map_err(said)?;
            }
        }
        Ok(())
    }

    /// Has other processes of ours keep from asking for certificates; `None` where one does not let us.
    pub(super) fn lock(&self) -> io::Result<Option<Lock>> {
        let mut options = OpenOptions::new();
        let file =
            options.write(true).create(true).truncate(false).mode(FILE_MODE).open(self.root.join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// What is known of the account.
    pub(super) fn account(&self) -> io::Result<Option<Vec<u8>>> {
        durable::read(&self.account_file(), ACCOUNT_BYTES_MAX)
    }

    /// Keeps an account.
    pub(super) fn keep_account(&self, bytes: &[u8]) -> io::Result<()> {
        durable::write_as(&self.account_file(), bytes, FILE_MODE)
    }

    /// Takes an account that is of no use out of the way; where it is now.
    pub(super) fn set_account_aside(&self) -> io::Result<PathBuf> {
        durable::set_aside(&self.account_file())
    }

    /// The certificate that is kept for a name. One that is damaged is said and set aside.
    pub(super) fn certificate(&self, name: &str) -> Option<Arc<Certificate>> {
        let file = self.file(name);
        match fs::read(&file) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => {
                // That says nothing of what is in it.
                tracing::warn!(name, "{}: cannot be read: {error}", file.display());
                return None;
            }
        }
        match self.read(&file, name) {
            Ok(certificate) => Some(certificate),
            Err(message) => {
                let aside = durable::set_aside(&file);
                let aside = aside.map_or_else(|error| error.to_string(), |aside| aside.display().to_string());
                tracing::warn!(name, "{message}; it is set aside: {aside}");
                None
            }
        }
    }

    /// Keeps a chain with its key, in PEM, in place of what was kept.
    ///
    /// # Errors
    /// When it cannot be used, or not be written; what was kept is kept still.
    pub(super) fn keep(&self, name: &str, pem: &str) -> Result<Arc<Certificate>, AcmeError> {
        let (file, next) = (self.file(name), self.certificates().join(format!(".{}.next", file_stem(name))));
        let said = |error: io::Error| format!("{}: {error}", file.display());
        // Looked at before it takes the place of one that is good.
        durable::write_as(&next, pem.as_bytes(), FILE_MODE).map_err(said)?;
        let read = self.read(&next, name);
        let _ = fs::remove_file(&next);
        read?;
        durable::write_as(&file, pem.as_bytes(), FILE_MODE).map_err(said)?;
        self.read(&file, name)
    }

    /// Keeps it no more.
    pub(super) fn forget(&self, name: &str) {
        if let Err(error) = fs::remove_file(self.file(name))
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(name, %error, "the certificate cannot be removed");
        }
    }

    /// Names that a certificate is kept for, at most so many.
    pub(super) fn names(&self, max: usize) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.certificates()) else {
            return Vec::new();
        };
        let name = |entry: io::Result<fs::DirEntry>| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let name = name.strip_suffix(ENDING)?;
            is_issuable(name).then(|| name.to_owned())
        };
        let mut names: Vec<String> = entries.filter_map(name).collect();
        names.sort_unstable();
        names.truncate(max);
        names
    }

    /// What the source of its certificates is called.
    pub(super) fn source(&self) -> String {
        format!("{SOURCE}{}", self.authority)
    }

    fn read(&self, file: &Path, name: &str) -> Result<Arc<Certificate>, AcmeError> {
        let pair = Pair { cert: file.to_owned(), key: file.to_owned(), ocsp: None };
        // What clients may stumble over was not for us to choose.
        let (certificate, _) = load(&pair, now_unix_s())?;
        if !certificate.names.iter().any(|one| one == name) {
            return Err(format!("{}: is for {:?}, not for {name}", file.display(), certificate.names).into());
        }
        Ok(Arc::new(Certificate { source: self.source(), ..certificate }))
    }

    fn certificates(&self) -> PathBuf {
        self.root.join("certificates")
    }

    fn account_file(&self) -> PathBuf {
        self.root.join("account.json")
    }

    /// Names have no `/` and no `_`.
    fn file(&self, name: &str) -> PathBuf {
        self.certificates().join(format!("{}{ENDING}", file_stem(name)))
    }
}

fn file_stem(name: &str) -> String {
    name.replace('*', "_")
}

/// A directory as the name of a folder.
fn word(directory: &AcmeDirectory) -> String {
    let AcmeDirectory::At(url) = directory else {
        return directory.word().to_owned();
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    let host: String = url.trim_start_matches("https://").chars().take(60).map(plain).collect();
    // Two URLs may look the same by now.
    let digest = data_encoding::HEXLOWER.encode(&Sha256::digest(url.as_bytes())[..4]);
    format!("{host}-{digest}")
}
