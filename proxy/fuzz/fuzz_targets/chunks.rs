//! Any bytes as a chunked body: divisions agree, a plainer reader sees the same body, and coding it anew is reversible.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_http::{ChunkDecoder, ChunkLimits, ParseError, Piece, Trailers, encode_chunk, encode_last_chunk};

// The judge of the property tests: a second reader, written apart from the parser.
#[allow(dead_code, reason = "the unit tests use more of it")]
#[path = "../../http/src/tests/strict.rs"]
mod strict;

/// Small, so that the fuzzer reaches each of them.
const LIMITS: ChunkLimits = ChunkLimits { line_bytes_max: 48, trailer_bytes_max: 128 };
/// What goes on has a space behind every colon, which what came may lack.
const OUT_LIMITS: ChunkLimits = ChunkLimits { trailer_bytes_max: 256, ..LIMITS };

/// Fields that would change what the message is, if some reader took them from behind the body.
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
    /// Bytes of the input that were its own.
    bytes: usize,
}

fuzz_target!(|bytes: &[u8]| {
    let whole = decode(bytes, LIMITS, |_| usize::MAX);
    assert_eq!(decode(bytes, LIMITS, |_| 1), whole, "byte by byte");
    assert_eq!(decode(bytes, LIMITS, |byte| 1 + usize::from(byte) % 13), whole, "in steps");
    let Ok(Some(body)) = whole else { return };

    assert_eq!(decode_plainly(bytes).as_ref(), Some(&(body.data.clone(), body.bytes)), "another reader");
    assert_trailers_are_clean(&body.trailers);
    for piece_bytes in [1, 7, usize::MAX] {
        let encoded = encode(&body, piece_bytes);
        let again = decode(&encoded, OUT_LIMITS, |_| usize::MAX);
        let bytes = encoded.len();
        let (data, trailers) = (body.data.clone(), body.trailers.clone());
        assert_eq!(again, Ok(Some(Body { data, trailers, bytes })), "coded anew");
    }
});

/// Decodes input that comes in steps, each chosen by its first byte; `None` if the body does not end.
fn decode(bytes: &[u8], limits: ChunkLimits, step: impl Fn(u8) -> usize) -> Result<Option<Body>, ParseError> {
    let mut decoder = ChunkDecoder::new(limits);
    let (mut data, mut at, mut end) = (Vec::new(), 0, 0);
    loop {
        let (used, piece) = decoder.next(&bytes[at..end])?;
        at += used;
        match piece {
            Piece::Data(piece) => {
                assert!(!piece.is_empty() && used >= piece.len(), "a piece is part of what was used");
                data.extend_from_slice(piece);
            }
            Piece::Done => {
                assert!(decoder.is_done() && decoder.data_bytes() == data.len() as u64);
                assert_eq!(
                    decoder.next(&bytes[at..]),
                    Ok((0, Piece::Done)),
                    "what follows is not the body's"
                );
                return Ok(Some(Body { data, trailers: decoder.trailers().clone(), bytes: at }));
            }
            Piece::NeedMore => {
                assert_eq!(at, end, "more is asked for when all is used");
                let Some(&byte) = bytes.get(end) else { return Ok(None) };
                end = bytes.len().min(end.saturating_add(step(byte)));
            }
        }
    }
}

/// A lenient reader by lines, as an origin may have it: data and length of the body.
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
