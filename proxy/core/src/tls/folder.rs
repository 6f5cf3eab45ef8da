//! Finds the certificates with keys in a folder.

use crate::tls::TlsConfigError;
use std::fs;
use std::path::{Path, PathBuf};

use super::certificate::Pair;

/// Maximum number of pairs in one folder.
const PAIRS_MAX: usize = 10_000;

/// The pairs in `folder` and in its direct subfolders, sorted by name.
///
/// In each folder the pair is fullchain.pem with privkey.pem, as certbot creates them. If these do not exist, the pairs
/// are each NAME.pem or NAME.crt that has a NAME.key, with NAME.ocsp if it exists. Names that start with a dot are
/// skipped.
///
/// # Errors
/// Why the folder cannot be read.
pub(crate) fn pairs(folder: &Path) -> Result<Vec<Pair>, TlsConfigError> {
    let mut found = here(folder)?;
    for below in entries(folder)?.into_iter().filter(|path| path.is_dir()) {
        // An unreadable subfolder may not contain certificates at all.
        found.extend(here(&below).unwrap_or_default());
        if found.len() > PAIRS_MAX {
            return Err(format!("{}: more than {PAIRS_MAX} certificates", folder.display()).into());
        }
    }
    Ok(found)
}

fn here(folder: &Path) -> Result<Vec<Pair>, TlsConfigError> {
    let [cert, key] = ["fullchain.pem", "privkey.pem"].map(|name| folder.join(name));
    if cert.exists() && key.exists() {
        let ocsp = Some(folder.join("fullchain.ocsp")).filter(|file| file.exists());
        return Ok(vec![Pair { cert, key, ocsp }]);
    }
    let is_certificate =
        |path: &PathBuf| matches!(path.extension().and_then(|e| e.to_str()), Some("pem" | "crt"));
    let pair = |cert: PathBuf| {
        let key = cert.with_extension("key");
        let ocsp = Some(cert.with_extension("ocsp")).filter(|file| file.exists());
        key.is_file().then_some(Pair { cert, key, ocsp })
    };
    Ok(entries(folder)?.into_iter().filter(is_certificate).filter_map(pair).collect())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, TlsConfigError> {
    let cannot = |error: std::io::Error| format!("{}: cannot be read: {error}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}
