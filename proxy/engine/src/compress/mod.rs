//! Encodes the bodies of responses: which ones, by which coding, and within which bounds.
//!
//! [`choice`] decides by the heads of request and response (RFC 9110 section 12.5.3). [`Compressors`] has a worker's
//! streams: their memory is bounded, contexts are used again, and [`pace`] watches how much of the worker's time they
//! take. Beyond its share, further responses are encoded at the lowest level, and then not at all.

mod brotli;
mod choice;
mod encoder;
mod gzip;
mod pace;
mod workshop;
mod zstd;

pub(crate) use choice::{Choice, choose, coding, describe, trailers_of_bytes};
pub(crate) use encoder::Encoder;
pub(crate) use workshop::Compressors;
