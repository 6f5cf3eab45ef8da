//! Counts what a client sends in addition to requests, frame by frame, before the state machine sees it.
//!
//! The crate responds to each PING and SETTINGS at once, and discards each reset at once, which limits memory but not
//! work. So the headers of frames are parsed here, too: nine bytes, of which type and flags matter.

use std::time::{Duration, Instant};

use sluice_core::metrics::Abuse;

/// A frame's header (RFC 9113 section 4.1).
const HEADER_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
/// The flag that marks SETTINGS and PING frames as acknowledgements.
const ACK: u8 = 1;

/// Bytes sent to the client that allow it one more control frame: a client that reads much opens windows often.
const BYTES_A_FRAME: u64 = 1024;

/// What a client may send in one interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) interval: Duration,
    pub(super) resets_max: u64,
    pub(super) control_frames_max: u64,
}

/// The counts of one connection.
pub(super) struct Meter {
    bounds: Bounds,
    /// The header being parsed.
    header: [u8; HEADER_BYTES],
    have: usize,
    /// Remaining bytes of the frame.
    payload: usize,
    begun: Instant,
    resets: u64,
    control_frames: u64,
    /// Bytes sent to the client.
    sent: u64,
    abuse: Option<Abuse>,
}

impl Meter {
    /// Starts after the preface.
    pub(super) fn new(bounds: Bounds, now: Instant) -> Self {
        Self {
            bounds,
            header: [0; HEADER_BYTES],
            have: 0,
            payload: super::PREFACE.len(),
            begun: now,
            resets: 0,
            control_frames: 0,
            sent: 0,
            abuse: None,
        }
    }

    /// The client's abuse, if there is one.
    pub(super) fn abuse(&self) -> Option<Abuse> {
        self.abuse
    }

    /// Counts bytes sent to the client.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// Examines received bytes.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) {
        loop {
            let passed = self.payload.min(bytes.len());
            self.payload -= passed;
            bytes = &bytes[passed..];
            if bytes.is_empty() {
                return;
            }
            let taken = (HEADER_BYTES - self.have).min(bytes.len());
            self.header[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == HEADER_BYTES {
                self.have = 0;
                let [high, middle, low, kind, flags, ..] = self.header;
                self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                self.frame(kind, flags);
            }
        }
    }

    fn frame(&mut self, kind: u8, flags: u8) {
        match kind {
            // Requests, which are limited by the streams served, and frames that the crate limits itself.
            DATA | HEADERS | CONTINUATION => return,
            // A reaction to what sluice sent.
            SETTINGS | PING if flags & ACK != 0 => return,
            RST_STREAM => self.resets += 1,
            _ => self.control_frames += 1,
        }
        let allowed = self.bounds.control_frames_max + self.sent / BYTES_A_FRAME;
        if self.resets <= self.bounds.resets_max && self.control_frames <= allowed {
            return;
        }
        // The clock is read only when a limit is reached.
        let now = Instant::now();
        if now.duration_since(self.begun) >= self.bounds.interval {
            self.begun = now;
            self.sent = 0;
            (self.resets, self.control_frames) = (0, 0);
        } else {
            let resets = self.resets > self.bounds.resets_max;
            self.abuse = Some(if resets { Abuse::Resets } else { Abuse::ControlFrames });
        }
    }
}
