//! What is known of an exchange while it runs: the part that the log and answers to failures need.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_core::cluster::Endpoint;

/// What is known of an exchange while it runs, for the log and for answering failures.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) endpoint: Option<Arc<Endpoint>>,
    /// Time in the cluster's line.
    pub(crate) queue: Duration,
    pub(crate) connect: Option<Duration>,
    /// Whether the connection was joined past loopback TCP.
    pub(crate) joined: bool,
    pub(crate) sent_at: Option<Instant>,
    pub(crate) first_byte_at: Option<Instant>,
    /// When the response ended, if sluice was not there.
    pub(crate) ended_at: Option<Instant>,
    /// Whether the response went to the client past sluice.
    pub(crate) direct: bool,
    pub(crate) status: u16,
    pub(crate) bytes_out: u64,
    pub(crate) retries: u32,
    /// The values of the answer's fields that are logged.
    pub(crate) logged: Vec<Vec<u8>>,
    /// Whether bytes of the final response may have reached the client.
    pub(crate) answered: bool,
    /// Whether the answer ends with the connection, so that an early end must be a reset.
    pub(crate) close_delimited: bool,
}
