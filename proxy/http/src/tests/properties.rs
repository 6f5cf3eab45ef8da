//! Properties that hold for any input: how input is divided changes nothing, coding is reversible, and forwarded heads
//! are clean.

use proptest::collection::vec;
use proptest::prelude::*;

use super::strict::{assert_clean_request, read_strictly};
use super::*;

/// Lines for heads, harmless and hostile.
fn field_line() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        4 => prop::sample::select(vec![
            "Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "TE", "Trailer", "Expect", "Via",
            "X-Forwarded-For", "X-Forwarded-Proto", "X-Request-Id", "Forwarded", "Proxy", "Keep-Alive", "Cookie",
            "Content_Length", "X_Forwarded_For", "Accept", "X-A", "Proxy-Connection", "HTTP2-Settings",
        ]).prop_map(|name| name.as_bytes().to_vec()),
        1 => "[!-~]{0,6}".prop_map(String::into_bytes),
    ];
    let value = prop_oneof![
        3 => prop::sample::select(vec![
            "a", "0", "5", "chunked", "close", "keep-alive, x-a", "upgrade", "websocket", "100-continue", "a.example",
            "Host, Cookie", "Trailer, Accept", "", "1, 1",
        ]).prop_map(|value| value.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..8),
        1 => "[ -~\t]{0,12}".prop_map(String::into_bytes),
    ];
    let separator = prop_oneof![8 => Just(": "), 1 => Just(":"), 1 => Just(" :")];
    let end = prop_oneof![20 => Just("\r\n"), 1 => Just("\n"), 1 => Just("\r")];
    (name, separator, value, end).prop_map(|(name, separator, value, end)| {
        [&name, separator.as_bytes(), &value, end.as_bytes()].concat()
    })
}

fn request_line() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::sample::select(vec![
            "GET / HTTP/1.1", "POST /a?b HTTP/1.1", "GET http://a.example/x HTTP/1.1", "OPTIONS * HTTP/1.1",
            "GET / HTTP/1.0", "TRACE / HTTP/1.1", "OPTIONS http://a.example HTTP/1.1", "PURGE /| HTTP/1.1",
        ]).prop_map(|line| line.as_bytes().to_vec()),
        1 => "(GET|POST) [!-~]{1,9} HTTP/1\\.[01]".prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..16),
    ]
}

/// Bytes that are often a request head, and often almost one.
fn request_bytes() -> impl Strategy<Value = Vec<u8>> {
    let host = prop_oneof![8 => Just("Host: a.example\r\n"), 1 => Just("")];
    (request_line(), host, vec(field_line(), 0..5)).prop_map(|(line, host, fields)| {
        [&line, b"\r\n".as_slice(), host.as_bytes(), &fields.concat(), b"\r\n"].concat()
    })
}

/// Scans `bytes` as they grow by `steps`, then parses. Also returns where the head ended.
fn read_in_steps(bytes: &[u8], steps: &[usize]) -> Result<Option<(usize, Framing)>, ParseError> {
    let mut scanner = HeadScanner::new();
    let mut seen = 0;
    let ends = steps
        .iter()
        .map(|step| {
            seen += step;
            seen
        })
        .take_while(|end| *end < bytes.len());
    for end in ends.chain([bytes.len()]) {
        if let Scan::Complete(end) = scanner.scan(&bytes[..end], &LIMITS)? {
            let mut head = RequestHead::new();
            head.parse(&bytes[..end], &LIMITS)?;
            return Ok(Some((end, request_framing(&head)?)));
        }
    }
    Ok(None)
}

/// Data, trailers and consumed bytes of a body.
type Body = (Vec<u8>, Vec<u8>, usize);

/// Decodes a body that arrives in pieces of these sizes; `None` if it does not end.
fn decode_in_steps(bytes: &[u8], steps: &[usize]) -> Result<Option<Body>, ParseError> {
    let mut decoder = ChunkDecoder::new(CHUNK_LIMITS);
    let (mut data, mut at, mut steps) = (Vec::new(), 0, steps.iter());
    let mut end = 0;
    loop {
        let (used, piece) = decoder.next(&bytes[at..end])?;
        at += used;
        match piece {
            Piece::Data(piece) => data.extend_from_slice(piece),
            Piece::Done => return Ok(Some((data, lines(decoder.trailers()), at))),
            Piece::NeedMore if end == bytes.len() => return Ok(None),
            Piece::NeedMore => end = bytes.len().min(end + steps.next().copied().unwrap_or(bytes.len())),
        }
    }
}

fn chunked_bytes() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        prop::sample::select(vec![
            "5\r\nhello\r\n",
            "1;a=\"b\\\"\"\r\nA\r\n",
            "0\r\n",
            "\r\n",
            "A: b\r\n",
            "Host: x\r\n",
            "0\r\n\r\n",
            "2 ; c\r\nhi\r\n",
        ])
        .prop_map(|part| part.as_bytes().to_vec()),
        vec(any::<u8>(), 0..4),
    ];
    vec(part, 0..8).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn dividing_a_head_changes_nothing(bytes in request_bytes(), steps in vec(1usize..20, 0..40)) {
        let whole = read_in_steps(&bytes, &[]);
        prop_assert_eq!(&read_in_steps(&bytes, &steps), &whole);
        prop_assert_eq!(&read_in_steps(&bytes, &vec![1; bytes.len()]), &whole);
    }

    #[test]
    fn dividing_a_head_under_tight_limits_changes_nothing(
        bytes in request_bytes(), head_bytes_max in 1usize..80, cut in 0usize..80,
    ) {
        let limits = HeadLimits { head_bytes_max, headers_max: 4, target_bytes_max: 1 };
        let whole = HeadScanner::new().scan(&bytes, &limits);
        let mut scanner = HeadScanner::new();
        let first = scanner.scan(&bytes[..cut.min(bytes.len())], &limits);
        let divided = if first == Ok(Scan::Partial) { scanner.scan(&bytes, &limits) } else { first };
        prop_assert_eq!(divided, whole);
    }

    #[test]
    fn scanning_any_bytes_does_not_panic(bytes in vec(any::<u8>(), 0..64)) {
        let _ = read_in_steps(&bytes, &[3, 1, 4]);
        let mut response = ResponseHead::new();
        let _ = response.parse(&bytes, &LIMITS).and_then(|()| response_framing(&response, Method::Get));
        let mut request = RequestHead::new();
        let _ = request.parse(&bytes, &LIMITS).and_then(|()| request_framing(&request));
    }

    #[test]
    fn dividing_a_body_changes_nothing(bytes in chunked_bytes(), steps in vec(1usize..9, 0..40)) {
        let whole = decode_in_steps(&bytes, &[]);
        prop_assert_eq!(&decode_in_steps(&bytes, &steps), &whole);
        prop_assert_eq!(&decode_in_steps(&bytes, &vec![1; bytes.len()]), &whole);
    }

    #[test]
    fn decoding_undoes_encoding(
        pieces in vec(vec(any::<u8>(), 0..40), 0..6), name in "x-[a-z]{1,4}", value in "[!-~]{1,4}", steps in vec(1usize..30, 0..30),
    ) {
        let mut trailers = TrailerReader::new(99);
        trailers.take(name.as_bytes(), value.as_bytes()).unwrap();
        let trailers = trailers.trailers();
        let mut encoded = Vec::new();
        pieces.iter().for_each(|piece| encode_chunk(&mut encoded, piece));
        encode_last_chunk(&mut encoded, trailers);
        let length = encoded.len();
        encoded.extend_from_slice(b"next");
        prop_assert_eq!(decode_in_steps(&encoded, &steps), Ok(Some((pieces.concat(), lines(trailers), length))));
    }

    #[test]
    fn forwarded_request_is_one_clean_head(bytes in request_bytes(), trusted: bool, via: bool) {
        let Ok(Scan::Complete(end)) = HeadScanner::new().scan(&bytes, &LIMITS) else { return Ok(()) };
        let mut head = RequestHead::new();
        let read = head.parse(&bytes[..end], &LIMITS).and_then(|()| request_framing(&head));
        let Ok(framing) = read else { return Ok(()) };
        prop_assume!(head.method() != Method::Connect);
        let host = if head.host().is_empty() { b"fallback" } else { head.host() };
        let mut out = Vec::new();
        encode_request(&mut out, &head, &RequestForward {
            path_and_query: head.path_and_query(), host, framing, client_ip: b"192.0.2.1", proto: b"http", trusted,
            request_id: b"id", request_start: b"t=1.000", continued: false, via, upgrade: head.upgrade(), edits: None,
            dropped: &[], traceparent: None, is_early: via, identity: None,
        });
        assert_clean_request(&read_strictly(&out));
        let (again, framing_again) = read_request(&out).expect("sluice accepts its own output");
        prop_assert_eq!(framing_again, framing);
        prop_assert_eq!(again.method_bytes(), head.method_bytes());
        prop_assert_eq!(again.path_and_query(), head.path_and_query());
        prop_assert_eq!(again.host(), host);
        for field in head.fields().filter(|field| head.fields.is_nominated(field.name)) {
            let own = field.name.to_ascii_lowercase().starts_with(b"x-forwarded-")
                || matches!(field.kind, FieldKind::Host | FieldKind::ContentLength | FieldKind::TransferEncoding)
                || matches!(field.kind, FieldKind::XRequestId | FieldKind::XRequestStart | FieldKind::Via)
                || matches!(field.kind, FieldKind::Upgrade | FieldKind::Connection);
            prop_assert!(own || again.get(field.name).is_none(), "nominated: {}", field.name.escape_ascii());
        }
    }

    #[test]
    fn forwarded_response_is_one_clean_head(
        status in 90u16..610, fields in vec(field_line(), 0..5), head_request: bool, keep_alive: bool,
    ) {
        let bytes = [format!("HTTP/1.1 {status} X\r\n").as_bytes(), &fields.concat(), b"\r\n"].concat();
        let method = if head_request { Method::Head } else { Method::Get };
        let Ok(Scan::Complete(_)) = HeadScanner::for_response().scan(&bytes, &LIMITS) else { return Ok(()) };
        let Ok((head, framing)) = read_response(&bytes, method) else { return Ok(()) };
        let mut out = Vec::new();
        encode_response(&mut out, &head, &ResponseForward {
        request_id: None,
            framing, keep_alive, client_version: Version::Http11, request_method: method, via: true, is_encoded: false,
            upgrade: false,
            edits: None, extra: [None; 5], listener: ListenerFields::NONE,
        });
        read_strictly(&out);
        let (again, framing_again) = read_response(&out, method).expect("sluice accepts its own output");
        prop_assert_eq!((again.status(), framing_again), (status, framing));
        prop_assert_eq!(again.keep_alive(), status < 200 || keep_alive && framing != Framing::CloseDelimited);
    }
}
