//! Recording of QUIC connections, for finding out why one is slow.

use std::path::PathBuf;

use super::codec::{File, keys, number};
use super::tracing::RATIO;

const MIB: u64 = 1 << 20;

/// Which HTTP/3 connections are recorded as qlog files, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct Qlog {
    /// The folder of the files, one for each connection.
    pub folder: PathBuf,
    /// Share of the connections that are recorded, from 0 to 1.
    pub sample_ratio: f64,
    /// Bytes of one file; what follows of its connection is not recorded.
    pub file_bytes_max: u64,
    /// Files in the folder; the oldest ones are removed.
    pub files_max: usize,
}

keys! { Qlog {
    // Recording costs time for each packet; one in a hundred shows what is usual.
    sample_ratio: 0.01, RATIO;
    // Some tens of thousands of packets.
    file_bytes_max: 10 * MIB, number(4096..=1 << 40);
    // A gigabyte with the largest files.
    files_max: 100, number(1..=100_000);
} required {
    folder: PathBuf::new(), "a folder that sluice may write to, such as /var/log/sluice/qlog", File;
}}
