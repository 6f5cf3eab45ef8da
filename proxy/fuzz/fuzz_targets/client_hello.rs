//! Any bytes as the first of a TLS connection: the result does not depend on how they are split into records, and bytes
//! that are not a whole ClientHello yet are reported as partial.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_http::client_hello::{ClientHello, parse};

const MAX: usize = 1 << 16;

fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes, MAX);
    for cut in 0..bytes.len() {
        let part = parse(&bytes[..cut], MAX);
        // More bytes never change a final result.
        assert!(part == ClientHello::Partial || part == whole, "{part:?} of {cut} bytes, then {whole:?}");
    }
    let Ok(length) = u16::try_from(bytes.len()) else { return };
    if bytes.is_empty() || length > 1 << 14 {
        return;
    }
    // The same bytes as a message, in one record and in many.
    let record = |piece: &[u8]| [&[22, 3, 1], &(piece.len() as u16).to_be_bytes()[..], piece].concat();
    let split: Vec<u8> = bytes.chunks(7).flat_map(record).collect();
    let (one, many) = (parse(&record(bytes), MAX), parse(&split, MAX));
    if one != ClientHello::TooLarge && many != ClientHello::TooLarge {
        assert_eq!(one, many);
    }
});
