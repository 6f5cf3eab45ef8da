//! The Huffman code of HPACK and QPACK (RFC 7541 appendix B).
//!
//! Its codes are canonical: those of one length are consecutive, in the order of their bytes. So the lengths say it all.

/// The length of each byte's code, in bits, and last that of the end.
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26, 30,
];

const SYMBOLS: usize = 257;
const END: u16 = 256;
const BITS_MAX: usize = 30;
/// Codes of up to this length are found at once: those of all common bytes.
const SHORT_BITS: usize = 8;

struct Code {
    /// The code of each symbol.
    codes: [u32; SYMBOLS],
    /// The symbols in the order of their codes.
    symbols: [u16; SYMBOLS],
    /// By length: the first code, and the index of its symbol.
    first: [(u32, u16); BITS_MAX + 2],
    /// By the next eight bits: a symbol and the length of its code, which is 0 if it is longer.
    short: [(u16, u8); 1 << SHORT_BITS],
}

static CODE: Code = build();

const fn build() -> Code {
    let mut built = Code {
        codes: [0; SYMBOLS],
        symbols: [0; SYMBOLS],
        first: [(0, 0); BITS_MAX + 2],
        short: [(0, 0); 1 << SHORT_BITS],
    };
    let (mut code, mut index, mut bits) = (0_u32, 0_usize, 1);
    while bits <= BITS_MAX {
        code <<= 1;
        built.first[bits] = (code, index as u16);
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == bits {
                built.codes[symbol] = code;
                built.symbols[index] = symbol as u16;
                if bits <= SHORT_BITS {
                    let start = (code as usize) << (SHORT_BITS - bits);
                    let mut at = start;
                    while at < start + (1 << (SHORT_BITS - bits)) {
                        built.short[at] = (symbol as u16, bits as u8);
                        at += 1;
                    }
                }
                code += 1;
                index += 1;
            }
            symbol += 1;
        }
        bits += 1;
    }
    built.first[BITS_MAX + 1] = (code << 1, index as u16);
    built
}

/// The size of `text` when encoded, in bytes.
pub(super) fn encoded_bytes(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|byte| usize::from(LENGTHS[usize::from(*byte)])).sum();
    bits.div_ceil(8)
}

/// Appends `text`, encoded.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut pending, mut bits) = (0_u64, 0_u32);
    for byte in text {
        let symbol = usize::from(*byte);
        pending = pending << LENGTHS[symbol] | u64::from(CODE.codes[symbol]);
        bits += u32::from(LENGTHS[symbol]);
        while bits >= 8 {
            bits -= 8;
            out.push((pending >> bits & 0xff) as u8);
        }
    }
    if bits > 0 {
        // Padded with the first bits of the end, which are ones.
        out.push((pending << (8 - bits) & 0xff) as u8 | 0xff >> bits);
    }
}

/// Appends the text that `bytes` encode. `None` if they are not the code of a text (RFC 7541 section 5.2).
pub(super) fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (mut window, mut bits) = (0_u64, 0_usize);
    let mut rest = bytes.iter();
    loop {
        while bits <= 56
            && let Some(byte) = rest.next()
        {
            window = window << 8 | u64::from(*byte);
            bits += 8;
        }
        if bits == 0 {
            return Some(());
        }
        let Some((symbol, length)) = next(window, bits) else {
            // Padding: fewer than eight bits, all ones.
            let ones = (1_u64 << bits) - 1;
            return (bits < 8 && window & ones == ones).then_some(());
        };
        out.push(u8::try_from(symbol).ok()?);
        bits -= length;
    }
}

/// The symbol at the start of the last `bits` bits of `window`, and the length of its code; `None` if they are not
/// enough for one, or the symbol is the end.
fn next(window: u64, bits: usize) -> Option<(u16, usize)> {
    let peek = |length: usize| match bits.checked_sub(length) {
        Some(right) => window >> right,
        None => window << (length - bits),
    } & ((1 << length) - 1);
    let (symbol, length) = CODE.short[peek(SHORT_BITS) as usize];
    if length > 0 {
        return (usize::from(length) <= bits).then_some((symbol, length.into()));
    }
    for length in SHORT_BITS + 1..=BITS_MAX.min(bits) {
        let code = peek(length);
        let (first, index) = CODE.first[length];
        let count = u64::from(CODE.first[length + 1].1 - index);
        if let Some(offset) = code.checked_sub(first.into()).filter(|offset| *offset < count) {
            let symbol = CODE.symbols[usize::from(index) + offset as usize];
            return (symbol != END).then_some((symbol, length));
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 7541 appendix C.4 and C.6.
    #[test]
    fn texts_of_the_standard_are_read_and_written() {
        for (text, bytes) in [
            (
                &b"www.example.com"[..],
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff][..],
            ),
            (b"no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            (b"302", &[0x64, 0x02]),
            (
                b"Mon, 21 Oct 2013 20:13:21 GMT",
                &[
                    0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04, 0x0b, 0x81,
                    0x66, 0xe0, 0x82, 0xa6, 0x2d, 0x1b, 0xff,
                ],
            ),
            (b"", &[]),
        ] {
            let (mut encoded, mut decoded) = (Vec::new(), Vec::new());
            encode(text, &mut encoded);
            assert_eq!((&encoded[..], encoded.len()), (bytes, encoded_bytes(text)));
            decode(bytes, &mut decoded).unwrap();
            assert_eq!(decoded, text);
        }
    }

    #[test]
    fn wrong_padding_and_the_end_are_refused() {
        for bytes in [&[0xff][..], &[0xff; 4], &[0x64, 0x02, 0xff], &[0x00], &[0xff, 0xff, 0xff, 0xfc]] {
            assert!(decode(bytes, &mut Vec::new()).is_none(), "{bytes:x?}");
        }
        assert!(decode(&[0x07], &mut Vec::new()).is_some(), "one byte of five bits, three ones");
        assert!(decode(&[0x06], &mut Vec::new()).is_none(), "padded with a zero");
    }

    proptest! {
        #[test]
        fn every_text_survives(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let (mut encoded, mut decoded) = (Vec::new(), Vec::new());
            encode(&text, &mut encoded);
            prop_assert_eq!(encoded.len(), encoded_bytes(&text));
            prop_assert!(decode(&encoded, &mut decoded).is_some());
            prop_assert_eq!(decoded, text);
        }

        #[test]
        fn no_bytes_break_the_decoder(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoded = Vec::new();
            if decode(&bytes, &mut decoded).is_some() {
                let mut encoded = Vec::new();
                encode(&decoded, &mut encoded);
                prop_assert_eq!(encoded, bytes, "there is one code for a text");
            }
        }
    }
}
