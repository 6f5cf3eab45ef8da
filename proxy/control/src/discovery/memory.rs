//! The last list of a source, kept for a start while the source is away.

use sluice_config::{Discovery, Endpoint, parse_endpoints, write_endpoints};
use sluice_core::durable;

/// The largest file that is read.
const BYTES_MAX: u64 = 16 << 20;

/// What was kept; nothing if there is no file, or it cannot be read.
pub(super) fn read(config: &Discovery) -> Vec<Endpoint> {
    let Some(path) = &config.memory_file else { return Vec::new() };
    let read = durable::read(path, BYTES_MAX).map_err(|error| error.to_string());
    let list = read.and_then(|bytes| {
        let text = String::from_utf8(bytes.unwrap_or_default()).map_err(|error| error.to_string())?;
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

/// Keeps a list.
pub(super) fn write(config: &Discovery, list: &[Endpoint]) {
    let Some(path) = config.memory_file.clone() else { return };
    let text = write_endpoints(list);
    // The disk may be slow; a later list may overtake this one only if it is stuck for long.
    tokio::task::spawn_blocking(move || {
        if let Err(error) = durable::write(&path, text.as_bytes()) {
            tracing::warn!(path = %path.display(), %error, "cannot keep the endpoints for the next start");
        }
    });
}
