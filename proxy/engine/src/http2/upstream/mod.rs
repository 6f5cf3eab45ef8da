//! HTTP/2 to endpoints (RFC 9113): connections that many exchanges share, each by a stream of its own.
//!
//! The reverse of the module above. A [`Channel`] is one exchange as a [`sluice_net::stream::Stream`]. The connection below
//! it is a [`SharedConnection`], which a task of its own drives (`driver`); [`Connections`] are a worker's. Nothing here
//! connects: see `upstream::multiplexed`.

mod channel;
mod connections;
mod driver;
mod response;
mod shared;

use std::time::Duration;

pub(crate) use super::fields::can_say;
pub(crate) use channel::Channel;
pub(crate) use connections::Connections;
pub(crate) use driver::{Terms, drive};
pub(crate) use shared::SharedConnection;

/// Exchanges on one connection, whatever the server allows.
const STREAMS_MAX: usize = 128;
/// Bytes of one answer that may wait here to be read.
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// As much as all streams together, so that clients that read nothing stop no other exchange.
const CONNECTION_WINDOW_BYTES: u32 = STREAMS_MAX as u32 * STREAM_WINDOW_BYTES;
/// Exchanges given up whose late frames are known for what they are.
const RESETS_REMEMBERED_MAX: usize = 1024;
/// For how long: an answer may be under way for as much.
const RESET_REMEMBERED: Duration = Duration::from_secs(30);
/// What small frames that wait to be read may cost, by the crate's count (256 less their length each): all windows full of
/// frames of some thirty bytes, as event streams have them.
const SMALL_FRAMES_COST_MAX: usize = 128 << 20;
/// Bytes of one request that may wait here to be sent.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
