//! What is known of an exchange while it runs: the part that the log and answers to failures need.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_core::cluster::Endpoint;
use sluice_core::record::BodyPath;

/// What is known of an exchange while it runs, for the log and for answering failures.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) endpoint: Option<Arc<Endpoint>>,
    pub(crate) times: Times,
    /// How its bytes go, if it is to be forwarded.
    pub(crate) path: Option<BodyPath>,
    pub(crate) status: u16,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) retries: u32,
    /// The values of the answer's fields that are logged.
    pub(crate) logged: Vec<Vec<u8>>,
    pub(crate) sent: Sent,
}

impl Progress {
    /// Whether bytes of the final response may have reached the client.
    pub(crate) fn is_answered(&self) -> bool {
        self.sent != Sent::Nothing
    }
}

/// When its steps were.
#[derive(Default)]
pub(crate) struct Times {
    /// Time in the cluster's line.
    pub(crate) queue: Duration,
    pub(crate) connect: Option<Duration>,
    pub(crate) sent_at: Option<Instant>,
    pub(crate) first_byte_at: Option<Instant>,
    /// When the response ended, if sluice was not there.
    pub(crate) ended_at: Option<Instant>,
}

/// What of the final response may have reached the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Nothing, so it can still get another.
    #[default]
    Nothing,
    /// A head, whose framing shows whether the body is whole.
    Head,
    /// A head of a response that ends with its connection, so that an early end must be a reset.
    CloseDelimited,
}
