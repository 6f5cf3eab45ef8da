//! HTTP messages: reading heads, framing bodies, and encoding what is forwarded. One model for every version.
//!
//! This is the security core. It is pure: no I/O, no descriptor, no clock, no unsafe code. A message passes through it
//! in this order:
//!
//! 1. For the text of HTTP/1.1, [`HeadScanner`] finds where a head ends, and [`RequestHead::parse`] or
//!    [`ResponseHead::parse`] reads it. HTTP/2 and HTTP/3 have fields instead: [`RequestHead::assemble`],
//!    [`ResponseHead::assemble`]. The same rules judge the head in both cases.
//! 2. [`request_framing`] and [`response_framing`] determine where the body ends. [`ChunkDecoder`] reads a chunked
//!    body.
//! 3. [`encode_request`] and [`encode_response`] write the forwarded head into a [`HeadSink`]: text, or a
//!    [`FieldBlock`] for a protocol with frames.
//!
//! Nothing received is echoed. Every forwarded byte has passed a rule of RFC 9110 or RFC 9112, and where those allow
//! leniency, this crate refuses.
#![forbid(unsafe_code)]

mod accept_encoding;
mod assemble;
mod authority;
mod chunk_extension;
mod chunked;
mod conditional;
mod connection;
mod cookie_scope;
mod edits;
mod encode;
mod encode_chunk;
mod encode_response;
mod error;
mod expect;
mod field_block;
mod fields;
mod framing;
mod grammar;
mod headers;
pub mod http3;
mod claim;
pub mod client_hello;
mod identity;
mod kind;
mod method;
pub mod postgres;
pub mod proxy_protocol;
mod range;
mod request;
mod response;
mod scan;
mod sink;
mod target;
#[cfg(test)]
mod tests;
mod trailers;
mod upgrade;

pub use accept_encoding::{Acceptance, Coding};
pub use assemble::{RequestParts, StreamFraming};
pub use chunked::{ChunkDecoder, ChunkLimits, Piece};
pub use conditional::{Precondition, Validators, http_date, is_same_weakly, read_http_date};
pub use cookie_scope::CookieScope;
pub use edits::{FieldEdits, is_same_name};
pub use encode::{RequestForward, encode_request};
pub use encode_chunk::{encode_chunk, encode_last_chunk};
pub use encode_response::{ListenerFields, ResponseForward, canonical_reason, encode_response, end_to_end};
pub use error::ParseError;
pub use expect::Expect;
pub use field_block::FieldBlock;
pub use fields::FieldRef;
pub use framing::{Framing, request_framing, response_framing};
pub use grammar::is_token;
pub use headers::forwarded_request_id;
pub use kind::FieldKind;
pub use method::{Method, Version};
pub use range::{ByteRange, Ranges};
pub use request::RequestHead;
pub use response::ResponseHead;
pub use scan::{HeadLimits, HeadScanner, Scan, skip_leading_crlf};
pub use sink::HeadSink;
pub use trailers::{TrailerReader, Trailers};
