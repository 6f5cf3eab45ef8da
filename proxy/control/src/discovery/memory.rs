//! The last list of a source, kept for a start while the source is away.

use std::path::Path;
use std::time::Duration;

use sluice_config::{Discovery, Endpoint, parse_endpoints, write_endpoints};
use sluice_core::durable;
use tokio::sync::watch;

/// The largest file that is read.
const BYTES_MAX: u64 = 16 << 20;
/// Between two writes.
const PACE: Duration = Duration::from_secs(1);

/// Writes lists to the configured file, one after the other, the newest only.
pub(super) struct Memory(Option<watch::Sender<Vec<Endpoint>>>);

impl Memory {
    /// For the file that is configured; without one, nothing is kept.
    pub(super) fn of(config: &Discovery) -> Self {
        let Some(path) = config.memory_file.clone() else { return Self(None) };
        let (sender, mut receiver) = watch::channel(Vec::new());
        // It ends with the sender, after the last list.
        tokio::spawn(async move {
            while receiver.changed().await.is_ok() {
                let (list, path) = (receiver.borrow_and_update().clone(), path.clone());
                let writing = tokio::task::spawn_blocking(move || write(&path, &list));
                let _ = writing.await;
                tokio::time::sleep(PACE).await;
            }
        });
        Self(Some(sender))
    }

    /// Keeps a list.
    pub(super) fn keep(&self, list: &[Endpoint]) {
        let Some(sender) = &self.0 else { return };
        sender.send_if_modified(|kept| {
            let is_new = kept != list;
            if is_new {
                *kept = list.to_vec();
            }
            is_new
        });
    }
}

fn write(path: &Path, list: &[Endpoint]) {
    if let Err(error) = durable::write(path, write_endpoints(list).as_bytes()) {
        tracing::warn!(path = %path.display(), %error, "cannot keep the endpoints for the next start");
    }
}

/// What was kept; nothing if there is no file, or it cannot be read.
pub(super) fn read(config: &Discovery) -> Vec<Endpoint> {
    let Some(path) = &config.memory_file else { return Vec::new() };
    let read = durable::read(path, BYTES_MAX).map_err(|error| error.to_string());
    let list = read.and_then(|bytes| {
        let bytes = bytes.unwrap_or_default();
        if bytes.len() as u64 > BYTES_MAX {
            return Err(format!("larger than {BYTES_MAX} bytes"));
        }
        let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let name = path.display().to_string();
        parse_endpoints(&name, &text, config.endpoints_max).map_err(|error| error.to_string())
    });
    list.unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), error, "cannot read the endpoints of before");
        Vec::new()
    })
}
