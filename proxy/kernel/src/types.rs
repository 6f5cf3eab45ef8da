//! The kernel's own type information: read once, because the file has some megabytes.

use std::fs;
use std::sync::OnceLock;

use sluice_ebpf::splice::SendBuffer;
use sluice_ebpf::{Memory, Offsets};

use super::btf::{self, BtfError};
use super::failed::{Result, failed};
use super::probe::{Host, Sources};

const FILE: &str = "/sys/kernel/btf/vmlinux";

/// What the programs need of it.
struct Found {
    bypass: std::result::Result<(Offsets, Memory), BtfError>,
    send_buffer: std::result::Result<SendBuffer, BtfError>,
}

/// What the bypass programs need.
///
/// # Errors
/// The file cannot be read, or lacks a required field.
pub(super) fn bypass() -> Result<(Offsets, Memory)> {
    found()?.bypass.clone().map_err(failed(FILE))
}

/// What the splice program needs.
///
/// # Errors
/// The errors of [`bypass`].
pub(super) fn send_buffer() -> Result<SendBuffer> {
    found()?.send_buffer.clone().map_err(failed(FILE))
}

fn found() -> Result<&'static Found> {
    static FOUND: OnceLock<Found> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found);
    }
    let legacy = Host::read(&Sources::host()).cgroups.legacy_memory;
    let bytes = fs::read(FILE).map_err(failed(FILE))?;
    Ok(FOUND
        .get_or_init(|| Found { bypass: btf::bypass(&bytes, legacy), send_buffer: btf::send_buffer(&bytes) }))
}
