//! QPACK without a dynamic table (RFC 9204): field lines refer to the static table, or are literal.

mod decode;
mod encode;
mod huffman;
mod integer;
mod stream;
mod table;

pub use decode::{DecodeError, decode};
pub use encode::Encoder;
pub use stream::{DecoderStream, EncoderStream};
