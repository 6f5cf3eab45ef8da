//! The certificates of one listener as read from its files, and re-read when a file has changed.

use crate::tls::TlsConfigError;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use sluice_config::CertificateFiles;

use super::certificate::{self, Certificate, Pair};
use super::folder;

/// The certificates in a listener's files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    pair: Pair,
    /// The state of the files when they were read; not updated if the new files are malformed and the old certificate
    /// was kept.
    seen: Seen,
    certificate: Option<Arc<Certificate>>,
}

/// Identifies one state of the files of a pair.
type Seen = [Option<(SystemTime, u64, u64)>; 3];

/// The state of all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look(Vec<(Pair, Seen)>);

/// A finding about one of the certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    /// Its index in `certificates` of the configuration.
    pub(crate) index: usize,
    /// The finding, with the name of the file.
    pub(crate) message: String,
    /// Whether the certificate cannot be served as configured.
    pub(crate) is_mistake: bool,
}

impl Set {
    /// Reads everything that `files` names. A pair whose files have not changed since `before` is not read again; if a
    /// pair is malformed now, the certificate from `before` is kept. In a folder a malformed pair is a warning instead
    /// of a mistake, and is skipped.
    pub(crate) fn read(files: &[CertificateFiles], before: &Self, now_unix_s: i64) -> (Self, Vec<Remark>) {
        let (mut set, mut remarks) = (Self::default(), Vec::new());
        for (index, files) in files.iter().enumerate() {
            let mut remark = |message, is_mistake| remarks.push(Remark { index, message, is_mistake });
            let (pairs, in_folder) = match pairs(files) {
                Ok(pairs) => (pairs, matches!(files, CertificateFiles::Folder(_))),
                Err(message) => {
                    remark(message.to_string(), true);
                    set.keep(files, before);
                    continue;
                }
            };
            if let (CertificateFiles::Folder(folder), true) = (files, pairs.is_empty()) {
                remark(format!("{}: contains no certificate with its key", folder.display()), false);
            }
            for pair in pairs {
                let (entry, found) = entry(pair, before, now_unix_s);
                let (warnings, mistake) = found;
                warnings.into_iter().for_each(|message| remark(message, false));
                if let Some(message) = mistake {
                    remark(message, !in_folder);
                }
                set.entries.push(entry);
            }
        }
        (set, remarks)
    }

    /// A folder that cannot be read now may be readable again later.
    fn keep(&mut self, files: &CertificateFiles, before: &Self) {
        if let CertificateFiles::Folder(folder) = files {
            let inside = before.entries.iter().filter(|entry| entry.pair.cert.starts_with(folder));
            self.entries.extend(inside.cloned());
        }
    }

    /// The key files.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Path> {
        self.entries.iter().map(|entry| entry.pair.key.as_path())
    }

    /// The state of the files when they were read.
    pub(crate) fn look(&self) -> Look {
        Look(self.entries.iter().map(|entry| (entry.pair.clone(), entry.seen)).collect())
    }

    /// The certificates, in the order of the configuration.
    pub(crate) fn certificates(&self) -> impl Iterator<Item = &Arc<Certificate>> {
        self.entries.iter().filter_map(|entry| entry.certificate.as_ref())
    }
}

type Found = (Vec<String>, Option<String>);

fn entry(pair: Pair, before: &Set, now_unix_s: i64) -> (Entry, Found) {
    let known = before.entries.iter().find(|entry| entry.pair == pair);
    // Before they are read: if they change in the meantime, they are read again.
    let seen = seen(&pair);
    if let Some(known) = known.filter(|known| known.seen == seen && known.certificate.is_some()) {
        return (known.clone(), Found::default());
    }
    match certificate::load(&pair, now_unix_s) {
        Ok((certificate, warnings)) => {
            let certificate = Some(Arc::new(certificate));
            (Entry { pair, seen, certificate }, (warnings, None))
        }
        Err(message) => {
            let (seen, certificate) =
                known.map_or((seen, None), |known| (known.seen, known.certificate.clone()));
            (Entry { pair, seen, certificate }, (Vec::new(), Some(message.to_string())))
        }
    }
}

fn pairs(files: &CertificateFiles) -> Result<Vec<Pair>, TlsConfigError> {
    match files {
        CertificateFiles::Folder(folder) => folder::pairs(folder),
        CertificateFiles::Pair { cert, key, ocsp } => {
            Ok(vec![Pair { cert: cert.clone(), key: key.clone(), ocsp: ocsp.clone() }])
        }
    }
}

impl Look {
    /// Gets the state of all files, without reading them.
    pub(crate) fn at(files: &[CertificateFiles]) -> Self {
        let pairs = files.iter().flat_map(|files| pairs(files).unwrap_or_default());
        Self(
            pairs
                .map(|pair| {
                    let seen = seen(&pair);
                    (pair, seen)
                })
                .collect(),
        )
    }
}

fn seen(pair: &Pair) -> Seen {
    let look = |file: &Path| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
    };
    [look(&pair.cert), look(&pair.key), pair.ocsp.as_deref().and_then(look)]
}
