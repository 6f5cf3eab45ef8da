//! HTTP/3 as bytes on QUIC streams (RFC 9114), without I/O: frames, settings, priorities, and field sections.
//!
//! The `h3` crate has all of this, but as one asynchronous machine above a transport of its own: it does not read
//! priorities, does not say what a client sends beside requests, and calls itself experimental. Framing is what sluice
//! must be able to judge byte by byte, so it is here, next to the framing of HTTP/1.1.
//!
//! Field sections use only the static table of QPACK. A client then cannot make sluice wait for one stream before it
//! reads another, nor keep memory in a table (RFC 9204 sections 2.1.2 and 7).

mod code;
mod control;
mod fields;
mod frame;
mod message;
mod priority;
pub mod qpack;
mod request;
mod settings;
mod varint;

pub use code::Http3Code;
pub use control::{ControlFrame, ControlReader};
pub use fields::{FieldSection, SectionError};
pub use frame::{FrameKind, FrameReader, Step};
pub use message::{MessagePart, MessageReader};
pub use priority::Priority;
pub use request::{Http3Request, Malformed};
pub use settings::Settings;
pub use varint::{push_varint, read_varint};

/// Types of unidirectional streams (RFC 9114 section 6.2, RFC 9204 section 4.2).
pub mod stream_type {
    /// Frames about the connection.
    pub const CONTROL: u64 = 0;
    /// Pushed responses; only a server may open one.
    pub const PUSH: u64 = 1;
    /// Instructions for the table of the decoder.
    pub const QPACK_ENCODER: u64 = 2;
    /// What the decoder says about its table.
    pub const QPACK_DECODER: u64 = 3;
}

/// Appends the header of a frame.
pub fn push_frame_header(out: &mut Vec<u8>, kind: FrameKind, length: u64) {
    push_varint(out, kind.number());
    push_varint(out, length);
}

/// The most bytes of the header of a DATA frame.
pub const DATA_HEADER_BYTES_MAX: usize = 9;
