//! Renders a body in the chunked coding (RFC 9112 section 7.1), without extensions.

use super::sink::push_line;
use super::trailers::Trailers;

/// Appends `data` as one chunk. Appends nothing if it is empty, because an empty chunk would end the body.
pub fn encode_chunk(out: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    push_size(out, data.len());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Appends the last chunk and `trailers`.
pub fn encode_last_chunk(out: &mut Vec<u8>, trailers: &Trailers) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.fields() {
        push_line(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

fn push_size(out: &mut Vec<u8>, size: usize) {
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4);
    for digit in (0..digits).rev() {
        out.push(b"0123456789abcdef"[(size >> (digit * 4)) & 0xf]);
    }
}
