//! What a client's connection is ended for with ENHANCE_YOUR_CALM (RFC 9113 section 10.5).

/// A way to have us work for nothing, each with its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abuse {
    /// Requests begun and reset at once (Rapid Reset, CVE-2023-44487): `limits.http2.resets_max`.
    Resets,
    /// Reset before they were looked at: `limits.http2.pending_resets_max`.
    PendingResets,
    /// Faults that make us reset streams (MadeYouReset, CVE-2025-8671): `limits.http2.faults_max`.
    Faults,
    /// A head in more CONTINUATION frames than it can need (CVE-2024-27316).
    Continuations,
    /// A head far beyond what is announced (`limits.head_bytes_max`).
    HeaderList,
    /// DATA frames that are empty or tiny.
    DataFrames,
    /// PING, SETTINGS, PRIORITY, WINDOW_UPDATE: `limits.http2.control_frames_max`.
    ControlFrames,
    /// What the crate finds too much and does not name.
    Other,
}

impl Abuse {
    /// Each, in declaration order.
    pub const ALL: [Self; 8] = [
        Self::Resets,
        Self::PendingResets,
        Self::Faults,
        Self::Continuations,
        Self::HeaderList,
        Self::DataFrames,
        Self::ControlFrames,
        Self::Other,
    ];

    /// Its word in log and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Resets => "resets",
            Self::PendingResets => "pending_resets",
            Self::Faults => "faults",
            Self::Continuations => "continuations",
            Self::HeaderList => "header_list",
            Self::DataFrames => "data_frames",
            Self::ControlFrames => "control_frames",
            Self::Other => "other",
        }
    }
}
