//! HTTP/2 to endpoints (RFC 9113): connections that many exchanges share, each by a stream of its own.
//!
//! The reverse of the module above. A [`Channel`] is an engine of [`crate::stream::Stream`]: HTTP/1.1 bytes as our
//! encoder writes them go in (`request`, `sending`), and those of the answer come out (`receiving`). The connection
//! below is a [`Shared`], which a task of its own drives (`driver`); [`Connections`] are a worker's. Nothing here
//! connects: see `upstream::multiplexed`.

mod channel;
mod connections;
mod driver;
mod receiving;
mod request;
mod sending;
mod shared;

pub(crate) use channel::Channel;
pub(crate) use connections::Connections;
pub(crate) use driver::{Terms, drive};
pub(crate) use shared::Shared;

/// Exchanges on one connection, whatever the server allows.
const STREAMS_MAX: usize = 128;
/// Bytes of one answer that may wait here to be read.
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// As much as all streams together, so that clients that read nothing stop no other exchange.
const CONNECTION_WINDOW_BYTES: u32 = STREAMS_MAX as u32 * STREAM_WINDOW_BYTES;
/// Bytes of one request that may wait here to be sent.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
