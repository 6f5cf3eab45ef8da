//! HTTP/2 to endpoints (RFC 9113): connections that many exchanges share, each on a separate stream.
//!
//! The reverse of the module above. A [`Channel`] is one exchange as a [`sluice_net::stream::Stream`]. The connection
//! below it is a [`SharedConnection`], driven by a separate task (`driver`); [`Connections`] are those of a worker.
//! Connecting is elsewhere: see `upstream::multiplexed`.

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

/// Maximum number of exchanges on one connection, even if the server allows more.
const STREAMS_MAX: usize = 128;
/// Bytes of one response that may wait here to be read.
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// The windows of all streams together, so that clients that do not read cannot block other exchanges.
const CONNECTION_WINDOW_BYTES: u32 = STREAMS_MAX as u32 * STREAM_WINDOW_BYTES;
/// The number of given-up exchanges whose late frames are recognised.
const RESETS_REMEMBERED_MAX: usize = 1024;
/// How long they are recognised: a response may be in flight for this long.
const RESET_REMEMBERED: Duration = Duration::from_secs(30);
/// The maximum cost of small frames that wait to be read, in the crate's count (256 minus their length each): all
/// windows full of frames of about thirty bytes, as in event streams.
const SMALL_FRAMES_COST_MAX: usize = 128 << 20;
/// Bytes of one request that may wait here to be sent.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
