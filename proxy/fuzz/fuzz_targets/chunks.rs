//! Any bytes as a chunked body: divisions agree, a simpler reader sees the same body, and re-encoding is reversible.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_http::{ChunkDecoder, ChunkLimits, ParseError, Piece, Trailers, encode_chunk, encode_last_chunk};

// The strict reader of the property tests, which is independent of the parser.
#[allow(dead_code, reason = "the unit tests use more of it")]
#[path = "../../http/src/tests/strict.rs"]
mod strict;

/// Small, so that the fuzzer reaches each limit.
const LIMITS: ChunkLimits = ChunkLimits { line_bytes_max: 48, trailer_bytes_max: 128 };
/// Forwarded trailers have a space after every colon, which received ones may lack.
const OUT_LIMITS: ChunkLimits = ChunkLimits { trailer_bytes_max: 256, ..LIMITS };

/// Fields that would change the message if a reader took them from after the body.
const NEVER_TRAILERS: [&str; 8] = [
    "content-length",
    "transfer-encoding",
    "host",
    "connection",
    "trailer",
    "upgrade",
    "authorization",
    "x-forwarded-for",
];

#[derive(Debug, PartialEq, Eq)]
struct Body {
    data: Vec<u8>,
    trailers: Trailers,
    /// Bytes of the input that belong to the body.
    bytes: usize,
}

fuzz_target!(|bytes: &[u8]| {
    let whole = decode(bytes, LIMITS, |_| usize::MAX);
    assert_eq!(decode(bytes, LIMITS, |_| 1), whole, "byte by byte");
    assert_eq!(decode(bytes, LIMITS, |byte| 1 + usize::from(byte) % 13), whole, "in steps");
    let Ok(Some(body)) = whole else { return };

    assert_eq!(decode_plainly(bytes).as_ref(), Some(&(body.data.clone(), body.bytes)), "the simple reader");
    assert_trailers_are_clean(&body.trailers);
    for piece_bytes in [1, 7, usize::MAX] {
        let encoded = encode(&body, piece_bytes);
        let again = decode(&encoded, OUT_LIMITS, |_| usize::MAX);
        let bytes = encoded.len();
        let (data, trailers) = (body.data.clone(), body.trailers.clone());
        assert_eq!(again, Ok(Some(Body { data, trailers, bytes })), "encoded again");
    }
});

/// Decodes input that arrives in steps, each chosen by its first byte; `None` if the body does not end.
fn decode(bytes: &[u8], limits: ChunkLimits, step: impl Fn(u8) -> usize) -> Result<Option<Body>, ParseError> {
    let mut decoder = ChunkDecoder::new(limits);
    let (mut data, mut at, mut end) = (Vec::new(), 0, 0);
    loop {
        let (used, piece) = decoder.next(&bytes[at..end])?;
        at += used;
        match piece {
            Piece::Data(piece) => {
                assert!(!piece.is_empty() && used >= piece.len(), "a piece is part of the consumed bytes");
                data.extend_from_slice(piece);
            }
            Piece::Done => {
                assert!(decoder.is_done() && decoder.data_bytes() == data.len() as u64);
                assert_eq!(
                    decoder.next(&bytes[at..]),
                    Ok((0, Piece::Done)),
                    "bytes after the body do not belong to it"
                );
                return Ok(Some(Body { data, trailers: decoder.trailers().clone(), bytes: at }));
            }
            Piece::NeedMore => {
                assert_eq!(at, end, "more input is requested only after all was consumed");
                let Some(&byte) = bytes.get(end) else { return Ok(None) };
                end = bytes.len().min(end.saturating_add(step(byte)));
            }
        }
    }
}

/// A lenient line reader like that of an origin: data and length of the body.
fn decode_plainly(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        let line = line(bytes, at)?;
        at += line.len() + 2;
        let digits = line.split(|byte| b"; \t".contains(byte)).next()?;
        let size = usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        data.extend_from_slice(bytes.get(at..at.checked_add(size)?)?);
        at += size + 2;
    }
    loop {
        let line = line(bytes, at)?;
        at += line.len() + 2;
        if line.is_empty() {
            return Some((data, at));
        }
    }
}

fn line(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    Some(&rest[..end])
}

fn encode(body: &Body, piece_bytes: usize) -> Vec<u8> {
    let mut encoded = Vec::new();
    body.data.chunks(piece_bytes).for_each(|piece| encode_chunk(&mut encoded, piece));
    encode_last_chunk(&mut encoded, &body.trailers);
    encoded
}

fn assert_trailers_are_clean(trailers: &Trailers) {
    let lines = trailers.fields().flat_map(|(name, value)| [name, b": ", value, b"\r\n"].concat());
    let head = [b"x\r\n", &*lines.collect::<Vec<u8>>(), b"\r\n"].concat();
    for (name, _) in strict::read_strictly(&head).fields {
        let dashed = name.replace('_', "-");
        assert!(!NEVER_TRAILERS.contains(&dashed.as_str()), "forwarded as a trailer: {name}");
    }
}
