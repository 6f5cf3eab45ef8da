//! HTTP/3 from clients (RFC 9114): connections with streams, each of them one exchange.
//!
//! `sluice_net::quic` carries the streams. [`serve`] drives a connection: it accepts streams, reads the client's control
//! streams and ends the connection in order or for a fault ([`driver`]). Each request becomes a [`Channel`], a
//! [`sluice_net::stream::Stream`] whose bytes are those of bodies ([`inbound`], [`outbound`]). Heads and trailers are
//! exchanged as fields, in the frames that `sluice_http::http3` reads and writes.

mod channel;
mod driver;
mod inbound;
mod link;
mod meter;
mod outbound;
mod own_control;
mod transport;
mod uni;

use std::io;

pub(crate) use channel::{Accepted, Channel};
pub(crate) use driver::{Terms, serve};
pub(crate) use link::Link;

/// The data to send is not a message, or not one that this protocol has.
fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// The stream, or its connection, was aborted.
fn broken() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
