//! HTTP/1.1 messages as bytes: scanning, parsing, framing, and rendering what is forwarded.
//!
//! This is the security core. It is pure: no IO, no descriptor, no clock, no unsafe, and it imports nothing from the
//! crate. A message passes it in this order: [`HeadScanner`] finds where the head ends, [`RequestHead`] or
//! [`ResponseHead`] says what it means, [`request_framing`] or [`response_framing`] how its body ends,
//! [`ChunkDecoder`] reads a chunked body, and the `encode_*` functions build what goes on. Nothing received is echoed:
//! every forwarded byte passed a rule of RFC 9110 or RFC 9112 first, and where those allow leniency this refuses.
#![forbid(unsafe_code)]

mod authority;
mod chunk_extension;
mod chunked;
mod connection;
mod cookie_scope;
mod edits;
mod encode;
mod encode_chunk;
mod encode_response;
mod error;
mod expect;
mod fields;
mod framing;
mod grammar;
mod headers;
mod claim;
pub mod client_hello;
mod identity;
mod kind;
mod method;
pub mod postgres;
pub mod proxy_protocol;
mod request;
mod response;
mod scan;
mod target;
#[cfg(test)]
mod tests;
mod trailers;
mod upgrade;

pub use chunked::{ChunkDecoder, ChunkLimits, Piece};
pub use cookie_scope::CookieScope;
pub use edits::FieldEdits;
pub use encode::{RequestForward, encode_request};
pub use encode_chunk::{encode_chunk, encode_last_chunk};
pub use encode_response::{ResponseForward, canonical_reason, encode_response};
pub use error::ParseError;
pub use expect::Expect;
pub use fields::FieldRef;
pub use framing::{Framing, request_framing, response_framing};
pub use grammar::is_token;
pub use headers::forwarded_request_id;
pub use kind::FieldKind;
pub use method::{Method, Version};
pub use request::RequestHead;
pub use response::ResponseHead;
pub use scan::{HeadLimits, HeadScanner, Scan, skip_leading_crlf};
