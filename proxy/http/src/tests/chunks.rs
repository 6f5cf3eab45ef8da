//! The chunked coding: its grammar, its limits, and trailers.

use super::*;

struct Decoded {
    data: Vec<u8>,
    trailers: Vec<u8>,
    used: usize,
}

/// Decodes `input` in one pass; `None` if the body does not end.
fn decode_with(input: &[u8], limits: ChunkLimits) -> Result<Option<Decoded>, ParseError> {
    let mut decoder = ChunkDecoder::new(limits);
    let (mut data, mut used) = (Vec::new(), 0);
    loop {
        let (consumed, piece) = decoder.next(&input[used..])?;
        used += consumed;
        match piece {
            Piece::Data(bytes) => data.extend_from_slice(bytes),
            Piece::NeedMore => return Ok(None),
            Piece::Done => break,
        }
    }
    assert!(decoder.is_done());
    assert_eq!(decoder.data_bytes(), data.len() as u64);
    Ok(Some(Decoded { data, trailers: lines(decoder.trailers()), used }))
}

fn decode(input: &[u8]) -> Result<Option<Decoded>, ParseError> {
    decode_with(input, CHUNK_LIMITS)
}

#[test]
fn valid_chunked_bodies_are_decoded() {
    let cases: [(&[u8], &[u8]); 10] = [
        (b"0\r\n\r\n", b""),
        (b"000\r\n\r\n", b""),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"0000000000000005\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"A\r\n0123456789\r\nb\r\n0123456789\n\r\n0\r\n\r\n", b"01234567890123456789\n"),
        (b"1;a=b\r\nA\r\n0;z\r\n\r\n", b"A"),
        (b"1;a;b=c;d=\"e;\\\"\tf\\\\\"\r\nA\r\n0\r\n\r\n", b"A"),
        (b"1 \t; a = b ;\tc\r\nA\r\n0\r\n\r\n", b"A"),
        (b"1;a=\"\"\r\n\0\r\n0\r\n\r\n", b"\0"),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n"),
    ];
    for (input, data) in cases {
        let with_next = [input, b"GET / HTTP/1.1"].concat();
        let decoded = decode(&with_next).unwrap().unwrap();
        assert_eq!((decoded.data.as_slice(), decoded.used), (data, input.len()));
        for cut in 0..input.len() {
            assert!(decode(&input[..cut]).unwrap().is_none(), "{cut} {}", input.escape_ascii());
        }
    }
}

#[test]
fn malformed_bodies_are_refused() {
    let cases: [&[u8]; 47] = [
        b"\r\n",
        b"\n",
        b"z\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b"1_0\r\n",
        b"1,\r\n",
        b" 1\r\n",
        b"\t1\r\n",
        b"1 \r\n",
        b"1\t\r\n",
        b"1 a\r\n",
        b"1\n",
        b"1\rx",
        b"1\0\r\n",
        b"1;\r\n",
        b"1;\n",
        b"1; \r\n",
        b"1;=a\r\n",
        b"1;a=\r\n",
        b"1;a \r\n",
        b"1;a=b \r\n",
        b"1;a b\r\n",
        b"1;a=b c\r\n",
        b"1;a=\"b\r\n",
        b"1;a=\"b\"c\r\n",
        b"1;a=\"b\" \r\n",
        b"1;a=\"\\\r\n",
        b"1;a=\"\x01\"\r\n",
        b"1;a\n",
        b"1;a\rb",
        b"1;a\0",
        b"1;;a\r\n",
        b"1\r\nAA\r\n",
        b"1\r\nA\n",
        b"1\r\nA\rA",
        b"1\r\nA\r\n\r\n",
        b"00000000000000000\r\n",
        b"ffffffffffffffff\r\n",
        b"7fffffffffffffff\r\n",
        b"1000000000000001\r\n",
        b"0\r\n\n",
        b"0\r\n\rx",
        b"0\r\nA: b\n",
        b"0\r\nA: b\rc",
        b"0\r\n\0",
    ];
    for input in cases {
        assert!(matches!(decode(input), Err(ParseError::BadBody)), "{}", input.escape_ascii());
    }
}

#[test]
fn an_error_is_final() {
    let mut decoder = ChunkDecoder::new(CHUNK_LIMITS);
    assert_eq!(decoder.next(b"zz"), Err(ParseError::BadBody));
    assert_eq!(decoder.next(b"0\r\n\r\n"), Err(ParseError::BadBody));
    assert_eq!(decoder.next(b""), Err(ParseError::BadBody));
    assert!(!decoder.is_done());
}

#[test]
fn whole_chunked_body_has_a_size_limit() {
    let half = format!("{:x}\r\n", 1u64 << 60);
    let mut decoder = ChunkDecoder::new(CHUNK_LIMITS);
    assert_eq!(decoder.next(b"1\r\nA\r\n").unwrap().1, Piece::Data(b"A"));
    assert_eq!(decoder.next(b"\r\n").unwrap().1, Piece::NeedMore);
    assert_eq!(decoder.next(half.as_bytes()), Err(ParseError::BadBody));
    let mut decoder = ChunkDecoder::new(CHUNK_LIMITS);
    assert_eq!(decoder.next(half.as_bytes()).unwrap().1, Piece::NeedMore, "the limit itself is allowed");
}

#[test]
fn chunk_size_line_limit_is_exact() {
    let body = |extension_bytes: usize| format!("0;{}\r\n\r\n", "a".repeat(extension_bytes));
    assert!(decode(body(62).as_bytes()).unwrap().is_some());
    assert!(matches!(decode(body(63).as_bytes()), Err(ParseError::BadBody)));
}

#[test]
fn extension_bytes_are_limited_relative_to_data() {
    let limits = ChunkLimits { line_bytes_max: 64, trailer_bytes_max: 0 };
    let tiny = [b"1;".as_slice(), &[b'a'; 62], b"\r\nA\r\n"].concat();
    // Each has 63 bytes of extension and an allowance of 17.
    let fits = 16 * 1024 / (63 - 17);
    assert!(matches!(decode_with(&tiny.repeat(fits), limits), Ok(None)));
    assert!(matches!(decode_with(&tiny.repeat(fits + 1), limits), Err(ParseError::BadBody)));
    let modest = b"1;a=b\r\nA\r\n".repeat(10_000);
    assert!(matches!(decode_with(&modest, limits), Ok(None)));
}

#[test]
fn forbidden_trailers_are_dropped() {
    let input = b"0\r\nX-Sum:  a b \r\nContent-Length: 5\r\nContent_Length: 5\r\nHOST: b\r\nX-Forwarded-For: 6\r\n\
        Authorization: x\r\nProxy-Status: x\r\nIf-Match: x\r\nSet-Cookie: x\r\nHosts: c\r\ngrpc-status: 0\r\n\r\n";
    let decoded = decode(input).unwrap().unwrap();
    assert_eq!(decoded.trailers, b"X-Sum: a b\r\nHosts: c\r\ngrpc-status: 0\r\n");
}

#[test]
fn malformed_trailers_are_refused() {
    let cases: [&[u8]; 9] = [
        b"A\r\n",
        b": b\r\n",
        b" A: b\r\n",
        b"A: b\r\n c\r\n",
        b"A : b\r\n",
        b"A b: c\r\n",
        b"A: \x01\r\n",
        b"A: \0\r\n",
        b"Content-Length 5\r\n",
    ];
    for line in cases {
        let input = [b"0\r\n", line, b"\r\n"].concat();
        assert!(matches!(decode(&input), Err(ParseError::BadBody)), "{}", line.escape_ascii());
    }
}

#[test]
fn trailer_limit_is_exact() {
    let section = b"A: b\r\nCookie: dropped, and counted\r\n";
    let input = [b"0\r\n".as_slice(), section, b"\r\n"].concat();
    let exact = ChunkLimits { trailer_bytes_max: section.len(), ..CHUNK_LIMITS };
    assert!(decode_with(&input, exact).unwrap().is_some());
    let over = ChunkLimits { trailer_bytes_max: section.len() - 1, ..CHUNK_LIMITS };
    assert!(matches!(decode_with(&input, over), Err(ParseError::TrailersTooLarge)));
    let none = ChunkLimits { trailer_bytes_max: 0, ..CHUNK_LIMITS };
    assert!(decode_with(b"0\r\n\r\n", none).unwrap().is_some());
}

#[test]
fn chunks_are_encoded_without_extensions() {
    let mut out = Vec::new();
    encode_chunk(&mut out, b"");
    assert_eq!(out, b"", "an empty chunk would end the body");
    encode_chunk(&mut out, b"hello");
    encode_chunk(&mut out, &[b'x'; 16]);
    let mut trailers = TrailerReader::new(99);
    trailers.take(b"A", b"b").unwrap();
    encode_last_chunk(&mut out, trailers.trailers());
    assert_eq!(out, b"5\r\nhello\r\n10\r\nxxxxxxxxxxxxxxxx\r\n0\r\nA: b\r\n\r\n");
}
