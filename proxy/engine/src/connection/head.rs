//! Waits for a request and receives its head.

use sluice_core::error::Reason;
use sluice_http::{HeadLimits, ParseError, RequestHead, Scan, skip_leading_crlf};
use sluice_net::buffers::{IDLE_BYTES, SMALL_BYTES};

use super::Connection;
use crate::worker::Phase;

/// How long a connection waits for its next request before its buffers are released.
const AWAKE_MS: u64 = 1000;

/// The result of the wait.
pub(super) enum Arrival {
    /// A request head, parsed and removed from the reader.
    Head,
    /// Bytes that are not an acceptable head, or that were too late.
    Refused(Reason),
    /// The client is done, or was silent too long.
    Closed,
}

impl Connection {
    /// The listener's limits on heads.
    pub(super) fn head_limits(&self) -> HeadLimits {
        HeadLimits {
            head_bytes_max: self.limits().head_bytes_max,
            headers_max: self.limits().headers_max,
            target_bytes_max: self.limits().target_bytes_max,
        }
    }

    /// Receives the next request head.
    pub(super) async fn next_head(&mut self) -> Arrival {
        let limits = self.head_limits();
        self.session.scanner.reset();
        let patience_ms = if self.worker.is_draining() || self.listener.is_closed() {
            // Its next request is already on its way, or never arrives.
            self.limits().half_close_timeout_ms
        } else {
            self.limits().keep_alive_timeout_ms
        };
        let awake_ms = patience_ms.min(AWAKE_MS);
        self.io.deadline.set(awake_ms);
        let mut awake = true;
        let mut begun = false;
        loop {
            if !begun {
                let skipped = skip_leading_crlf(self.io.reader.data());
                self.io.reader.consume(skipped);
            }
            match self.parse(&limits) {
                Ok(true) => return Arrival::Head,
                Ok(false) => {}
                Err(error) => return Arrival::Refused(reason(error)),
            }
            // A lone CR may be half of an empty line before the head, to be skipped once its LF has arrived.
            if !begun && !matches!(self.io.reader.data(), [] | b"\r") {
                begun = true;
                self.set_phase(Phase::Busy);
                // From now on one deadline applies to the whole head, however slowly it arrives.
                self.io.deadline.set(self.limits().header_timeout_ms);
            }
            let filled = match begun {
                true => self.io.deadline.run(self.io.reader.fill(SMALL_BYTES)).await,
                false => self.first_bytes(IDLE_BYTES).await,
            };
            match filled {
                Some(Ok(count)) if count > 0 => {}
                None if begun => return Arrival::Refused(Reason::HeaderTimeout),
                None if awake && patience_ms > awake_ms => {
                    awake = false;
                    self.release_memory();
                    self.io.deadline.set(patience_ms - awake_ms);
                }
                _ => return Arrival::Closed,
            }
        }
    }

    /// Releases the memory that only the next request needs.
    fn release_memory(&mut self) {
        if self.io.writer.try_settle(&self.io.deadline) {
            self.io.writer.shrink(0);
        }
        self.session.head = RequestHead::new();
    }

    /// Parses the received bytes; returns false if the head is incomplete.
    fn parse(&mut self, limits: &HeadLimits) -> Result<bool, ParseError> {
        match self.session.scanner.scan(self.io.reader.data(), limits)? {
            Scan::Partial => Ok(false),
            Scan::Complete(length) => {
                self.session.head.parse(&self.io.reader.data()[..length], limits)?;
                self.io.reader.consume(length);
                Ok(true)
            }
        }
    }
}

/// The reason code of a refused head.
pub(super) fn reason(error: ParseError) -> Reason {
    match error {
        ParseError::BadHost => Reason::BadHost,
        ParseError::BadFraming => Reason::BadFraming,
        ParseError::TargetTooLong => Reason::TargetTooLong,
        ParseError::HeadTooLarge => Reason::HeadTooLarge,
        ParseError::VersionNotSupported => Reason::VersionNotSupported,
        _ => Reason::BadRequest,
    }
}
