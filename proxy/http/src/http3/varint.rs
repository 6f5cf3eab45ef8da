//! Integers of variable length (RFC 9000 section 16).

/// The largest number.
pub(crate) const VARINT_MAX: u64 = (1 << 62) - 1;

/// Reads a number from the start of `bytes`, with its size in bytes; `None` if it is incomplete.
pub fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let size = 1 << (first >> 6);
    let rest = bytes.get(1..size)?;
    let start = u64::from(first & 0x3f);
    Some((rest.iter().fold(start, |number, byte| number << 8 | u64::from(*byte)), size))
}

/// Appends a number in as few bytes as possible. Numbers that do not fit are cut to the largest one.
pub fn push_varint(out: &mut Vec<u8>, number: u64) {
    let number = number.min(VARINT_MAX);
    let (size, mark) = match number {
        0..=0x3f => (1, 0),
        0x40..=0x3fff => (2, 0x40),
        0x4000..=0x3fff_ffff => (4, 0x80),
        _ => (8, 0xc0),
    };
    let bytes = number.to_be_bytes();
    let start = out.len();
    out.extend_from_slice(&bytes[bytes.len() - size..]);
    out[start] |= mark;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000 appendix A.1.
    #[test]
    fn numbers_of_the_standard_are_read_and_written() {
        for (bytes, number) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            assert_eq!(read_varint(bytes), Some((number, bytes.len())));
            let mut out = Vec::new();
            push_varint(&mut out, number);
            assert_eq!(out, bytes);
            assert_eq!(read_varint(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(read_varint(&[0x40, 0x25]), Some((37, 2)), "a longer form than needed");
    }
}
