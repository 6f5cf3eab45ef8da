//! HTTP/2 from clients (RFC 9113), and in `upstream` to endpoints: a connection of streams, each of which becomes a connection of one exchange.
//!
//! The frames are the `h2` crate's business. [`serve`] drives its state machine over the two directions of a stream
//! (`wire`), bounds what a client may ask of it (`meter`, `abuse`) and hands on each HTTP/2 stream as a [`Channel`]:
//! an engine of [`sluice_net::stream::Stream`] like a socket, out of which the request comes as HTTP/1.1 bytes
//! (`request`, `incoming`) and into which the answer goes as such (`response`, `outgoing`). So nothing above the
//! seam knows of HTTP/2, and what HTTP/1.1 refuses is refused here by the same parser.

mod abuse;
mod channel;
mod control;
mod driver;
mod incoming;
mod meter;
mod outgoing;
mod pieces;
mod request;
mod response;
#[cfg(test)]
mod tests;
pub(crate) mod upstream;
mod wire;

pub(crate) use channel::Channel;
pub(crate) use control::Control;
pub(crate) use driver::{Terms, is_preface, serve};

/// What a client that speaks HTTP/2 sends first (RFC 9113 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
