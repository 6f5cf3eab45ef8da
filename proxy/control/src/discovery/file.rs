//! Endpoints in a file: a list as in the configuration.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_config::{Endpoint, parse_endpoints};
use sluice_core::durable;

use crate::remote::RemoteError;

/// How often it is looked at. A change of the links on the way to it, as Kubernetes makes it, is not reported by
/// inotify.
const INTERVAL: Duration = Duration::from_millis(500);
/// The largest file.
const BYTES_MAX: u64 = 8 << 20;

/// A file with a list of endpoints.
pub(super) struct ListFile {
    path: PathBuf,
    most: usize,
    seen: Option<Seen>,
}

/// What differs after a change.
type Seen = (u64, u64, i64, i64, u64);

impl ListFile {
    /// With at most this many endpoints.
    pub(super) fn new(path: &Path, most: usize) -> Self {
        Self { path: path.to_owned(), most, seen: None }
    }

    /// See [`super::source::Finder::next`].
    pub(super) async fn next(&mut self) -> Result<Vec<Endpoint>, RemoteError> {
        loop {
            let (path, most, before) = (self.path.clone(), self.most, self.seen);
            let looking = tokio::task::spawn_blocking(move || look(&path, most, before));
            let found = looking.await.map_err(|error| error.to_string())?;
            if let Some((seen, list)) = found? {
                self.seen = Some(seen);
                return Ok(list);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// What the file has now; `None` if it has not changed.
fn look(
    path: &Path,
    most: usize,
    before: Option<Seen>,
) -> Result<Option<(Seen, Vec<Endpoint>)>, RemoteError> {
    let name = path.display();
    let said = |error: &dyn std::fmt::Display| RemoteError::from(format!("{name}: {error}"));
    let meta = fs::metadata(path).map_err(|error| said(&error))?;
    let seen = (meta.dev(), meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.size());
    if before == Some(seen) {
        return Ok(None);
    }
    let bytes = durable::read(path, BYTES_MAX).map_err(|error| said(&error))?.unwrap_or_default();
    if bytes.len() as u64 > BYTES_MAX {
        return Err(said(&format!("larger than {BYTES_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| said(&error.utf8_error()))?;
    if text.trim().is_empty() {
        return Ok(Some((seen, Vec::new())));
    }
    let list = parse_endpoints(&name.to_string(), &text, most).map_err(|error| error.to_string())?;
    Ok(Some((seen, list)))
}
