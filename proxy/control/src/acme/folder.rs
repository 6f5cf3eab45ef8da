//! The files that outlive the process: the account, and one file per certificate with its key. Blocks.
//!
//! Files are complete or absent, and only readable by the owner. Each authority has its own folder, so that a test
//! certificate is never used in place of a real one.

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

/// Prefix of the `source` of its certificates on the status page.
pub(super) const SOURCE: &str = "acme ";
const ENDING: &str = ".pem";
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Maximum bytes of an account file, which contains a key and two URLs.
const ACCOUNT_BYTES_MAX: u64 = 64 << 10;

/// The folder of one authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folder {
    root: PathBuf,
    /// The authority, as shown in log lines.
    pub(super) authority: String,
}

/// Held while certificates are ordered; other processes wait.
#[derive(Debug)]
pub(super) struct Lock(#[allow(dead_code, reason = "unlocked when it is closed")] File);

impl Folder {
    /// The folder of the certificates that the configured authority issues.
    ///
    /// # Errors
    /// When the configuration names no folder and there is no default.
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

    /// Creates missing folders, and removes access of others.
    ///
    /// # Errors
    /// What cannot be created, with its name.
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

    /// Keeps other sluice processes from ordering certificates; `None` if another process holds the lock.
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

    /// The stored account.
    pub(super) fn account(&self) -> io::Result<Option<Vec<u8>>> {
        durable::read(&self.account_file(), ACCOUNT_BYTES_MAX)
    }

    /// Stores an account.
    pub(super) fn keep_account(&self, bytes: &[u8]) -> io::Result<()> {
        durable::write_as(&self.account_file(), bytes, FILE_MODE)
    }

    /// Renames an unusable account file; returns its new path.
    pub(super) fn set_account_aside(&self) -> io::Result<PathBuf> {
        durable::set_aside(&self.account_file())
    }

    /// The stored certificate of a name. A damaged one is logged and renamed.
    pub(super) fn certificate(&self, name: &str) -> Option<Arc<Certificate>> {
        let file = self.file(name);
        match fs::read(&file) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => {
                // A read error says nothing about the content.
                tracing::warn!(name, "{}: cannot be read: {error}", file.display());
                return None;
            }
        }
        match self.read(&file, name) {
            Ok(certificate) => Some(certificate),
            Err(message) => {
                match durable::set_aside(&file) {
                    Ok(aside) => tracing::warn!(name, "{message}; renamed to {}", aside.display()),
                    Err(error) => tracing::warn!(name, "{message}; cannot rename the file: {error}"),
                }
                None
            }
        }
    }

    /// Stores a chain and its key in PEM, replacing the previous ones.
    ///
    /// # Errors
    /// When it cannot be used or written; the previous file stays.
    pub(super) fn keep(&self, name: &str, pem: &str) -> Result<Arc<Certificate>, AcmeError> {
        let (file, next) = (self.file(name), self.certificates().join(format!(".{}.next", file_stem(name))));
        let said = |error: io::Error| format!("{}: {error}", file.display());
        // Checked before it replaces a good file.
        durable::write_as(&next, pem.as_bytes(), FILE_MODE).map_err(said)?;
        let read = self.read(&next, name);
        let _ = fs::remove_file(&next);
        read?;
        durable::write_as(&file, pem.as_bytes(), FILE_MODE).map_err(said)?;
        self.read(&file, name)
    }

    /// Stores a certificate that was issued later than the stored one, and returns it; `None` if it was not.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub(super) fn keep_newer(&self, name: &str, pem: &str) -> Result<Option<Arc<Certificate>>, AcmeError> {
        let age = |certificate: &Certificate| (certificate.not_before, certificate.not_after);
        let before = self.certificate(name).map(|before| age(&before));
        let next = self.certificates().join(format!(".{}.look", file_stem(name)));
        durable::write_as(&next, pem.as_bytes(), FILE_MODE).map_err(|error| error.to_string())?;
        let read = self.read(&next, name);
        let _ = fs::remove_file(&next);
        match before {
            Some(before) if before >= age(&*read?) => Ok(None),
            _ => self.keep(name, pem).map(Some),
        }
    }

    /// A stored chain with its key, in PEM.
    pub(super) fn pem(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.file(name)).ok()
    }

    /// Removes the stored certificate.
    pub(super) fn forget(&self, name: &str) {
        if let Err(error) = fs::remove_file(self.file(name))
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(name, %error, "cannot remove the certificate");
        }
    }

    /// Names with a stored certificate, at most `max`.
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

    /// The `source` of its certificates.
    pub(super) fn source(&self) -> String {
        format!("{SOURCE}{}", self.authority)
    }

    fn read(&self, file: &Path, name: &str) -> Result<Arc<Certificate>, AcmeError> {
        let pair = Pair { cert: file.to_owned(), key: file.to_owned(), ocsp: None };
        // Warnings about the chain are dropped: the authority chose it.
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

    /// Names contain neither `/` nor `_`.
    fn file(&self, name: &str) -> PathBuf {
        self.certificates().join(format!("{}{ENDING}", file_stem(name)))
    }
}

/// The name of a certificate's file without its ending.
pub(super) fn file_stem(name: &str) -> String {
    name.replace('*', "_")
}

/// The folder name of a directory URL.
fn word(directory: &AcmeDirectory) -> String {
    let AcmeDirectory::At(url) = directory else {
        return directory.word().to_owned();
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    let host: String = url.trim_start_matches("https://").chars().take(60).map(plain).collect();
    // After replacing characters, two URLs may look the same.
    let digest = data_encoding::HEXLOWER.encode(&Sha256::digest(url.as_bytes())[..4]);
    format!("{host}-{digest}")
}
