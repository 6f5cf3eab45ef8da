//! HTTP/2 from clients (RFC 9113), and in `upstream` to endpoints: connections with streams, each of them one exchange.
//!
//! The `h2` crate reads and writes the frames. [`serve`] drives its state machine over the two directions of a stream
//! (`wire`), limits what a client may demand (`meter`, `abuse`) and provides each HTTP/2 stream as a [`Channel`]: a
//! [`sluice_net::stream::Stream`] whose bytes are those of bodies (`inbound`, `outbound`). Heads and trailers are
//! exchanged as fields: a request fills the same head as the HTTP/1.1 parser does (`request`), and the output of
//! sluice's encoders for framed protocols becomes the crate's messages (`fields`).

mod abuse;
mod channel;
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
pub(crate) use driver::{Terms, is_preface, serve};

/// The first bytes of an HTTP/2 client (RFC 9113 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The data to send is not a message, or not one that this protocol has.
fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// The stream, or its connection, was aborted.
fn broken() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
