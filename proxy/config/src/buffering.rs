//! Whether bodies are held back until they are whole, by route, and what that may take in all. It holds nothing.

use std::path::PathBuf;

use super::Switch;

/// What one route holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffering {
    /// Whether a request is received whole before an endpoint is picked.
    pub buffer_requests: Switch,
    /// Whether a response is received whole before the client gets its first byte.
    pub buffer_responses: Switch,
    /// Bytes of one body that are held in memory; the rest goes into a file.
    pub buffer_memory_bytes: usize,
    /// Bytes of a request body, buffered or not (413 beyond); 0 is no bound but the listener's.
    pub request_body_bytes_max: u64,
    /// Bytes of a response body, buffered or not (500 beyond); 0 is no bound.
    pub response_body_bytes_max: u64,
}

/// What all bodies that are held back at one time may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// The folder of the files; `None` is the system's for temporary ones.
    pub spool_directory: Option<PathBuf>,
    /// Bytes in files; 0 is no files.
    pub spool_bytes_max: u64,
    /// Bytes in memory; beyond it bodies go into files.
    pub memory_bytes_max: u64,
}

impl Buffering {
    /// Whether it holds anything back.
    pub fn is_on(&self) -> bool {
        self.buffer_requests == Switch::On || self.buffer_responses == Switch::On
    }

    /// Whether answers have to come through sluice, to be held or counted.
    pub fn concerns_responses(&self) -> bool {
        self.buffer_responses == Switch::On || self.response_body_bytes_max > 0
    }

    /// Each key, and whether it says something else than by default.
    pub(super) fn differences(&self) -> [(&'static str, bool); 5] {
        let plain = Self::default();
        [
            ("buffer_requests", self.buffer_requests != plain.buffer_requests),
            ("buffer_responses", self.buffer_responses != plain.buffer_responses),
            ("buffer_memory_bytes", self.buffer_memory_bytes != plain.buffer_memory_bytes),
            ("request_body_bytes_max", self.request_body_bytes_max != plain.request_body_bytes_max),
            ("response_body_bytes_max", self.response_body_bytes_max != plain.response_body_bytes_max),
        ]
    }
}

impl Buffers {
    /// The folder of the files.
    pub fn directory(&self) -> PathBuf {
        self.spool_directory.clone().unwrap_or_else(std::env::temp_dir)
    }
}
