//! Which routes buffer bodies, and how much all buffers may take together. Buffers nothing itself.

use std::path::PathBuf;

use super::Switch;

/// Buffering of one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffering {
    /// Whether a request is received completely before an endpoint is picked.
    pub buffer_requests: Switch,
    /// Whether a response is received completely before the client gets its first byte.
    pub buffer_responses: Switch,
    /// Bytes of one body that are kept in memory; the rest goes to a file.
    pub buffer_memory_bytes: usize,
    /// Maximum bytes of a request body, buffered or not (413 beyond); 0 leaves only the listener's limit.
    pub request_body_bytes_max: u64,
    /// Maximum bytes of a response body, buffered or not (500 beyond); 0 is unlimited.
    pub response_body_bytes_max: u64,
}

/// Limits on all buffered bodies together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// The folder of the files; `None` is the system's folder for temporary files.
    pub spool_directory: Option<PathBuf>,
    /// Bytes in files; 0 uses no files.
    pub spool_bytes_max: u64,
    /// Bytes in memory; beyond it, bodies go to files.
    pub memory_bytes_max: u64,
}

impl Buffering {
    /// Whether it buffers anything.
    pub fn is_on(&self) -> bool {
        self.buffer_requests == Switch::On || self.buffer_responses == Switch::On
    }

    /// Each key, and whether its value differs from the default.
    pub(super) fn differences(&self) -> [(&'static str, bool); 5] {
        let plain = Self::default();
        [
            ("buffer_requests", self.buffer_requests != plain.buffer_requests),
            ("buffer_responses", self.buffer_responses != plain.buffer_responses),
            ("buffer_memory", self.buffer_memory_bytes != plain.buffer_memory_bytes),
            ("request_body_max", self.request_body_bytes_max != plain.request_body_bytes_max),
            ("response_body_max", self.response_body_bytes_max != plain.response_body_bytes_max),
        ]
    }
}

impl Buffers {
    /// The folder of the files.
    pub fn directory(&self) -> PathBuf {
        self.spool_directory.clone().unwrap_or_else(std::env::temp_dir)
    }
}
