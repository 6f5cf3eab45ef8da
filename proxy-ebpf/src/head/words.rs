//! Eight bytes of a head at a time, the first in the lowest byte. Classes of bytes are given by their complement: each
//! function sets the high bit of the bytes outside the class, and is exact for the lowest of them.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = ONES << 7;

/// `byte` in each of the eight positions.
pub(super) const fn each(byte: u8) -> u64 {
    ONES * byte as u64
}

/// Up to eight bytes as they are loaded; the positions after them are 0.
pub(super) const fn word(text: &[u8]) -> u64 {
    let mut word = 0;
    let mut index = text.len();
    while index > 0 {
        index -= 1;
        word = word << 8 | text[index] as u64;
    }
    word
}

/// Letters in lower case. Digits and `-` are unchanged; other bytes become arbitrary.
#[inline(always)]
pub(super) const fn lower(word: u64) -> u64 {
    word | each(0x20)
}

/// All bytes except SP and visible ASCII.
#[inline(always)]
pub(super) const fn not_text(word: u64) -> u64 {
    // Below SP the subtraction borrows, and DEL becomes 0x80; carries only reach bytes after the first flagged one.
    (word.wrapping_sub(each(b' ')) | word.wrapping_add(ONES) | word) & HIGHS
}

/// All bytes except letters, digits and `-`.
#[inline(always)]
pub(super) const fn not_name(word: u64) -> u64 {
    // Seven bits and a sum of at most 0xff: no position overflows into the next.
    let seven = word & !HIGHS;
    let lower = lower(seven);
    let letter = (lower + each(0x80 - b'a')) & !(lower + each(0x7f - b'z'));
    let digit = (seven + each(0x80 - b'0')) & !(seven + each(0x7f - b'9'));
    let dash = !((seven ^ each(b'-')) + each(0x7f));
    !((letter | digit | dash) & !word) & HIGHS
}

/// Index of the lowest flagged byte of a word that contains only flags and at least one.
#[inline(always)]
pub(super) const fn first(flags: u64) -> u64 {
    // Each byte below it counts once; the sum is in the highest byte.
    let below = (flags.wrapping_sub(1) & !flags & HIGHS) >> 7;
    below.wrapping_mul(ONES) >> 56
}

/// The number in the first `count` bytes (1 to 8); `None` if one is not a digit.
#[inline(always)]
pub(super) const fn decimal(word: u64, count: u64) -> Option<u64> {
    // Moved to the high end, with zeros in front.
    let missing = (8 - count) * 8;
    let zeros = if missing == 0 { 0 } else { each(b'0') >> (count * 8) };
    let digits = word << missing | zeros;
    let high = each(0xf0);
    if (digits & high) | (digits.wrapping_add(each(6)) & high) >> 4 != each(0x33) {
        return None;
    }
    // Neighbours are combined: eight numbers below 10, four below 100, two below 10 000, one.
    let ones = digits & each(0x0f);
    let tens = (ones * 10 + (ones >> 8)) & 0x00ff_00ff_00ff_00ff;
    let hundreds = (tens * 100 + (tens >> 16)) & 0x0000_ffff_0000_ffff;
    Some((hundreds * 10_000 + (hundreds >> 32)) & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lowest(flags: u64) -> Option<u64> {
        (flags != 0).then(|| first(flags))
    }

    /// Every byte at every position, with valid bytes before it and various bytes after it.
    #[test]
    fn the_first_byte_of_a_wrong_class_is_found() {
        let is_text = |byte: u8| matches!(byte, b' '..=b'~');
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        for (place, byte) in (0..8usize).flat_map(|place| (0..=255).map(move |byte| (place, byte))) {
            for behind in [0, b'a', b'\r', 0x7f, 0x80, 0xff] {
                let mut text = [behind; 8];
                text[..place].fill(b'Z');
                text[place] = byte;
                let word = u64::from_le_bytes(text);
                let expected =
                    |is: fn(u8) -> bool| text.iter().position(|byte| !is(*byte)).map(|at| at as u64);
                assert_eq!(lowest(not_text(word)), expected(is_text), "{text:?}");
                assert_eq!(lowest(not_name(word)), expected(is_name), "{text:?}");
            }
        }
    }

    #[test]
    fn digits_are_a_number() {
        assert_eq!(decimal(word(b"7\r\n"), 1), Some(7));
        assert_eq!(decimal(word(b"12345678"), 8), Some(12_345_678));
        assert_eq!(decimal(word(b"99999999"), 8), Some(99_999_999));
        assert_eq!(decimal(word(b"10240x"), 5), Some(10_240));
        for byte in (0..=255).filter(|byte: &u8| !byte.is_ascii_digit()) {
            assert_eq!(decimal(word(&[b'1', byte, b'3']), 3), None, "{byte}");
        }
    }
}
