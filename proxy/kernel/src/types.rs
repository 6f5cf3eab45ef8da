//! The kernel's own type information: read once, because the file has some megabytes.

use std::fs;
use std::sync::OnceLock;

use sluice_ebpf::splice::SendBuffer;
use sluice_ebpf::{Memory, Offsets};

use super::btf::{self, BtfError};
use super::failed::{Result, failed};
use super::probe::{Host, Sources};

const FILE: &str = "/sys/kernel/btf/vmlinux";

/// Where the fields are that the programs read.
struct FieldOffsets {
    bypass: std::result::Result<(Offsets, Memory), BtfError>,
    send_buffer: std::result::Result<SendBuffer, BtfError>,
}

/// What the bypass programs need.
///
/// # Errors
/// The file cannot be read, or lacks a required field.
pub(super) fn bypass() -> Result<(Offsets, Memory)> {
    field_offsets()?.bypass.clone().map_err(failed(FILE))
}

/// What the splice program needs.
///
/// # Errors
/// The errors of [`bypass`].
pub(super) fn send_buffer() -> Result<SendBuffer> {
    field_offsets()?.send_buffer.clone().map_err(failed(FILE))
}

fn field_offsets() -> Result<&'static FieldOffsets> {
    static OFFSETS: OnceLock<FieldOffsets> = OnceLock::new();
    if let Some(offsets) = OFFSETS.get() {
        return Ok(offsets);
    }
    let legacy = Host::read(&Sources::host()).cgroups.legacy_memory;
    let bytes = fs::read(FILE).map_err(failed(FILE))?;
    Ok(OFFSETS.get_or_init(|| FieldOffsets {
        bypass: btf::bypass(&bytes, legacy),
        send_buffer: btf::send_buffer(&bytes),
    }))
}
