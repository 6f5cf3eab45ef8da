//! The state of a running exchange that the log and error responses need.

use std::time::{Duration, Instant};

use sluice_core::record::BodyPath;

use crate::endpoint::LocalEndpoint;

/// The state of a running exchange, for the log and for error responses.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) endpoint: Option<LocalEndpoint>,
    pub(crate) times: Times,
    /// The path of its bytes, if it is to be forwarded.
    pub(crate) path: Option<BodyPath>,
    pub(crate) status: u16,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) retries: u32,
    /// The values of the response's logged fields.
    pub(crate) logged: Vec<Vec<u8>>,
    pub(crate) sent: Sent,
}

impl Progress {
    /// Whether bytes of the final response may have reached the client.
    pub(crate) fn is_answered(&self) -> bool {
        self.sent != Sent::Nothing
    }
}

/// The times of its steps.
#[derive(Default)]
pub(crate) struct Times {
    /// Time in the cluster's queue.
    pub(crate) queue: Duration,
    pub(crate) connect: Option<Duration>,
    pub(crate) sent_at: Option<Instant>,
    pub(crate) first_byte_at: Option<Instant>,
    /// When the response ended, if sluice noticed only later.
    pub(crate) ended_at: Option<Instant>,
}

/// The part of the final response that may have reached the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Nothing, so another response can still be sent.
    #[default]
    Nothing,
    /// A head whose framing shows whether the body is complete.
    Head,
    /// A head of a response that ends with its connection, so that an early end must be a reset.
    CloseDelimited,
}
