//! The certificates of one listener as its files have them, read again where a file has changed.

use crate::tls::TlsConfigError;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use sluice_config::CertificateFiles;

use super::certificate::{self, Certificate, Pair};
use super::folder;

/// What a listener's files have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    pair: Pair,
    /// The files when they were read; not those of a certificate that was kept as the new one is broken.
    seen: Seen,
    certificate: Option<Arc<Certificate>>,
}

/// What tells one state of the files of a pair from another.
type Seen = [Option<(SystemTime, u64, u64)>; 3];

/// What all the files looked like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look(Vec<(Pair, Seen)>);

/// Something about one of the certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    /// Which of `certificates` in the configuration.
    pub(crate) index: usize,
    /// What, with the name of the file.
    pub(crate) message: String,
    /// Whether it cannot be served as configured.
    pub(crate) is_mistake: bool,
}

impl Set {
    /// Reads all that `files` names. A pair whose files are as in `before` is not read again; of one that is broken now
    /// the certificate from `before` stays. In a folder a broken pair is no mistake but a warning, and is left out.
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
                remark(format!("{}: no certificate with its key is in it", folder.display()), false);
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

    /// A folder that cannot be read now may be so again.
    fn keep(&mut self, files: &CertificateFiles, before: &Self) {
        if let CertificateFiles::Folder(folder) = files {
            let inside = before.entries.iter().filter(|entry| entry.pair.cert.starts_with(folder));
            self.entries.extend(inside.cloned());
        }
    }

    /// The files of keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Path> {
        self.entries.iter().map(|entry| entry.pair.key.as_path())
    }

    /// What the files looked like when they were read.
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
    // Before they are read: if they change meanwhile they are read again.
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
    /// Looks at all files, without reading them.
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
