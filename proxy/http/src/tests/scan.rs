//! Where a head ends, what it must never contain, and its limits.

use super::*;

fn scan(bytes: &[u8]) -> Result<Scan, ParseError> {
    HeadScanner::new().scan(bytes, &LIMITS)
}

#[test]
fn head_ends_with_its_empty_line() {
    let head = get_with(b"Accept: */*\r\n");
    let with_more = [head.as_slice(), b"body\n\0"].concat();
    assert_eq!(scan(&with_more), Ok(Scan::Complete(head.len())));
    for cut in 0..head.len() {
        assert_eq!(scan(&head[..cut]), Ok(Scan::Partial), "{cut}");
    }
}

#[test]
fn scanner_is_reusable_after_reset() {
    let head = get_with(b"");
    let mut scanner = HeadScanner::new();
    for _ in 0..2 {
        assert_eq!(scanner.scan(&head[..20], &LIMITS), Ok(Scan::Partial));
        assert_eq!(scanner.scan(&head, &LIMITS), Ok(Scan::Complete(head.len())));
        scanner.reset();
    }
}

#[test]
fn forbidden_bytes_are_refused_before_the_head_is_complete() {
    let cases: [&[u8]; 22] = [
        b"\n",
        b"\0",
        b" GET",
        b"\tGET",
        b"\x16\x03\x01",
        b"\r\nGET / HTTP/1.1",
        b"\rG",
        b"GET\t/",
        b"G@T",
        b"GET\r\n",
        b"GET / HTTP/1.1\n",
        b"GET / HTTP/1.1\rX",
        b"GET / HTTP/1.1\r\n\n",
        b"GET / HTTP/1.1\r\nA: b\nC",
        b"GET / HTTP/1.1\r\nA: b\rC",
        b"GET / HTTP/1.1\r\nA: b\0",
        b"GET / HTTP/1.1\r\n folded",
        b"GET / HTTP/1.1\r\nA: b\r\n\tfolded",
        b"GET /\r\n",
        b"GET / http/1.1\r\n",
        b"GET / HTTP/01.1\r\n",
        b"GET / HTTP/1.1 \r\n",
    ];
    for case in cases {
        assert_eq!(scan(case), Err(ParseError::BadRequest), "{}", case.escape_ascii());
    }
}

#[test]
fn method_has_at_most_32_bytes() {
    assert_eq!(scan(&[b'M'; 32]), Ok(Scan::Partial));
    assert_eq!(scan(&[b'M'; 33]), Err(ParseError::BadRequest));
    assert_eq!(scan(&[&[b'M'; 32][..], b" /"].concat()), Ok(Scan::Partial));
}

#[test]
fn head_limit_is_exact() {
    let head = get_with(b"Accept: */*\r\n");
    let exact = HeadLimits { head_bytes_max: head.len(), ..LIMITS };
    assert_eq!(HeadScanner::new().scan(&head, &exact), Ok(Scan::Complete(head.len())));
    assert_eq!(RequestHead::new().parse(&head, &exact), Ok(()));
    let over = HeadLimits { head_bytes_max: head.len() - 1, ..LIMITS };
    assert_eq!(HeadScanner::new().scan(&head, &over), Err(ParseError::HeadTooLarge));
    assert_eq!(HeadScanner::new().scan(&head[..head.len() - 1], &over), Err(ParseError::HeadTooLarge));
    assert_eq!(RequestHead::new().parse(&head, &over), Err(ParseError::HeadTooLarge));
    assert_eq!(HeadScanner::new().scan(&head[..head.len() - 2], &over), Ok(Scan::Partial));
}

#[test]
fn target_limit_also_limits_the_request_line() {
    let line_bytes_max = LIMITS.target_bytes_max + 64;
    let line = [b"GET /".as_slice(), &vec![b'a'; line_bytes_max]].concat();
    assert_eq!(scan(&line[..line_bytes_max]), Ok(Scan::Partial));
    assert_eq!(scan(&line), Err(ParseError::TargetTooLong));
}

#[test]
fn target_limit_is_exact() {
    for (target_bytes, accepted) in [(LIMITS.target_bytes_max, true), (LIMITS.target_bytes_max + 1, false)] {
        let target = format!("/{}", "a".repeat(target_bytes - 1));
        let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let found = read_request(head.as_bytes()).map(|_| ());
        assert_eq!(found, if accepted { Ok(()) } else { Err(ParseError::TargetTooLong) });
    }
}

#[test]
fn field_count_limit_is_exact() {
    let fields = |count: usize| get_with(&b"a:\r\n".repeat(count - 1));
    assert_eq!(read_request(&fields(LIMITS.headers_max)).unwrap().0.fields().count(), LIMITS.headers_max);
    refused(&fields(LIMITS.headers_max + 1), ParseError::HeadTooLarge);
    // More than the stack has room for.
    let many = HeadLimits { headers_max: 500, ..LIMITS };
    assert_eq!(RequestHead::new().parse(&fields(500), &many), Ok(()));
    assert_eq!(RequestHead::new().parse(&fields(501), &many), Err(ParseError::HeadTooLarge));
}

#[test]
fn empty_lines_before_a_request_are_skipped_up_to_a_limit() {
    let cases: [(&[u8], usize); 7] = [
        (b"", 0),
        (b"GET", 0),
        (b"\r\nGET", 2),
        (b"\r\n\r\n\r\n\r\n\r\n", 8),
        (b"\r\n\r", 2),
        (b"\n\n", 0),
        (b"\r\r\n", 0),
    ];
    for (bytes, skipped) in cases {
        assert_eq!(skip_leading_crlf(bytes), skipped, "{}", bytes.escape_ascii());
    }
    assert_eq!(scan(b"\r"), Ok(Scan::Partial), "the LF may still arrive");
}

#[test]
fn invalid_response_start_is_refused_at_its_first_byte() {
    let cases: [&[u8]; 8] = [
        b"\r",
        b"\r\nHTTP/1.1 200 OK",
        b"<html>",
        b"HTTP/2",
        b"http/1.1",
        b"HTTP/1.1 200 OK\n",
        b"HTTP/1.1 200 OK\r\nA: \0",
        b"HTTP/1.1 200 OK\r\nA: b\r\n c",
    ];
    for case in cases {
        let found = HeadScanner::for_response().scan(case, &LIMITS);
        assert_eq!(found, Err(ParseError::BadResponse), "{}", case.escape_ascii());
    }
    let head = ok_with(b"");
    assert_eq!(HeadScanner::for_response().scan(&head, &LIMITS), Ok(Scan::Complete(head.len())));
    let over = HeadLimits { head_bytes_max: head.len() - 1, ..LIMITS };
    assert_eq!(HeadScanner::for_response().scan(&head, &over), Err(ParseError::BadResponse));
}
