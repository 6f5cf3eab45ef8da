//! HTTP/2 from clients (RFC 9113), and in `upstream` to endpoints: connections of streams, each of them one exchange.
//!
//! The `h2` crate reads and writes the frames. [`serve`] drives its state machine over the two directions of a stream
//! (`wire`), bounds what a client may ask of it (`meter`, `abuse`) and hands on each HTTP/2 stream as a [`Channel`]: a
//! [`sluice_net::stream::Stream`] whose bytes are those of bodies (`inbound`, `outbound`). Heads and trailers come and go as
//! fields: a request fills the same head that the parser of HTTP/1.1 does (`request`), and what our encoders write for
//! a protocol with frames becomes the crate's messages (`fields`).

mod abuse;
mod channel;
mod control;
mod driver;
mod fields;
mod inbound;
mod meter;
mod outbound;
mod request;
#[cfg(test)]
mod tests;
pub(crate) mod upstream;
mod wire;

use std::io;

pub(crate) use channel::Accepted;
pub(crate) use control::Control;
pub(crate) use driver::{Terms, is_preface, serve};

/// What a client that speaks HTTP/2 sends first (RFC 9113 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What is to be sent is no message, or none that this protocol has.
fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// The stream, or its connection, was broken off.
fn broken() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
