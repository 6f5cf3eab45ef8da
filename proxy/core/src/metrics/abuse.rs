//! Why a client's connection is closed with ENHANCE_YOUR_CALM (RFC 9113 section 10.5).

/// A way to waste the server's work, with its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abuse {
    /// Requests started and reset at once (Rapid Reset, CVE-2023-44487): `limits.http2.resets_max`.
    Resets,
    /// Reset before sluice processed them: `limits.http2.pending_resets_max`.
    PendingResets,
    /// Faults that make sluice reset streams (MadeYouReset, CVE-2025-8671): `limits.http2.faults_max`.
    Faults,
    /// A head in more CONTINUATION frames than it can need (CVE-2024-27316).
    Continuations,
    /// A head far beyond the announced limit (`limits.head_bytes_max`).
    HeaderList,
    /// Empty or tiny DATA frames.
    DataFrames,
    /// PING, SETTINGS, PRIORITY, WINDOW_UPDATE: `limits.http2.control_frames_max`.
    ControlFrames,
    /// Abuse that the h2 crate detects but does not name.
    Other,
}

impl Abuse {
    /// All kinds, in declaration order.
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

    /// Its name in log and metrics.
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
