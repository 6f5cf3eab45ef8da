//! Integers with a prefix (RFC 7541 section 5.1, RFC 9204 section 4.1.1).

/// The largest number that means anything here: lengths and indexes are far smaller.
const NUMBER_MAX: u64 = u32::MAX as u64;

/// Reads a number whose first byte has `prefix_bits` bits of it, from the start of `bytes`, and moves past it. `None` if
/// it is incomplete or too large.
pub(super) fn read(bytes: &mut &[u8], prefix_bits: u32) -> Option<usize> {
    let (first, mut rest) = bytes.split_first()?;
    let mask = (1_u64 << prefix_bits) - 1;
    let mut number = u64::from(*first) & mask;
    if number == mask {
        let mut shift = 0;
        loop {
            let (byte, after) = rest.split_first()?;
            rest = after;
            number += u64::from(byte & 0x7f) << shift;
            // Zeros may pad a number, but not for ever.
            if number > NUMBER_MAX || shift > 28 {
                return None;
            }
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
        }
    }
    *bytes = rest;
    usize::try_from(number).ok()
}

/// Appends a number; `first` has the bits before the prefix.
pub(super) fn push(out: &mut Vec<u8>, first: u8, prefix_bits: u32, number: usize) {
    let mask = (1_usize << prefix_bits) - 1;
    // Each is below the bound that it is cut to.
    let low = |number: usize| (number & 0xff) as u8;
    if number < mask {
        return out.push(first | low(number));
    }
    out.push(first | low(mask));
    let mut rest = number - mask;
    while rest >= 0x80 {
        out.push(low(rest & 0x7f) | 0x80);
        rest >>= 7;
    }
    out.push(low(rest));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541 appendix C.1.
    #[test]
    fn numbers_of_the_standard_are_read_and_written() {
        for (number, prefix_bits, bytes) in
            [(10, 5, &[0b01010][..]), (1337, 5, &[0b11111, 0b1001_1010, 0b1010]), (42, 8, &[42])]
        {
            let mut out = Vec::new();
            push(&mut out, 0, prefix_bits, number);
            assert_eq!(out, bytes);
            let mut rest = bytes;
            assert_eq!(read(&mut rest, prefix_bits), Some(number));
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn numbers_that_are_too_long_are_refused() {
        for bytes in [&[0xff][..], &[0xff, 0x80], &[0xff; 12], &[0xff, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00]] {
            assert_eq!(read(&mut { bytes }, 8), None, "{bytes:x?}");
        }
    }
}
