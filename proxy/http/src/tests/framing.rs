//! Where bodies end: RFC 9112 section 6.3, case by case.

use super::*;

#[test]
fn request_framing_by_case() {
    let cases: [(&[u8], Framing); 8] = [
        (b"", Framing::None),
        (b"Content-Length: 0\r\n", Framing::Length(0)),
        (b"Content-Length: 5\r\n", Framing::Length(5)),
        (b"content-length:\t005 \r\n", Framing::Length(5)),
        (b"Content-Length: 9223372036854775807\r\n", Framing::Length(i64::MAX as u64)),
        (b"Content-Length: 0000000000000000001\r\n", Framing::Length(1)),
        (b"Transfer-Encoding: chunked\r\n", Framing::Chunked),
        (b"TRANSFER-ENCODING: \tChunked \r\n", Framing::Chunked),
    ];
    for (fields, expected) in cases {
        for bytes in [get_with(fields), post_with(fields)] {
            assert_eq!(read_request(&bytes).unwrap().1, expected, "{}", bytes.escape_ascii());
        }
    }
}

/// Field lines that are invalid in requests and in responses.
const BAD_FIELDS: [&[u8]; 35] = [
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: x\r\n",
    b"Transfer-Encoding:\r\n",
    b"Transfer-Encoding: gzip\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: chunked, gzip\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n",
    b"Transfer-Encoding: ,chunked\r\n",
    b"Transfer-Encoding: chunked,\r\n",
    b"Transfer-Encoding: chunked;q=1\r\n",
    b"Transfer-Encoding: \"chunked\"\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: chunked\xa0\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    b"Content-Length:\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: -5\r\n",
    b"Content-Length: 0x5\r\n",
    b"Content-Length: 5.0\r\n",
    b"Content-Length: 5 5\r\n",
    b"Content-Length: 5_0\r\n",
    b"Content-Length: \"5\"\r\n",
    b"Content-Length: 5,\r\n",
    b"Content-Length: ,5\r\n",
    b"Content-Length: 5,6\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Content-Length: 5\r\nContent-Length:\r\n",
    b"Content-Length: \xb2\r\n",
    b"Content-Length: 9223372036854775808\r\n",
    b"Content-Length: 18446744073709551616\r\n",
    b"Content-Length: 99999999999999999999999999\r\n",
    b"Content-Length: 00000000000000000001\r\n",
];

#[test]
fn contradictory_and_invalid_framing_is_refused() {
    for fields in BAD_FIELDS {
        refused(&post_with(fields), ParseError::BadFraming);
        for method in [Method::Get, Method::Head] {
            let found = read_response(&ok_with(fields), method).map(|_| ());
            assert_eq!(found, Err(ParseError::BadResponse), "{}", fields.escape_ascii());
        }
    }
}

#[test]
fn repeated_equal_lengths_are_refused_in_requests_only() {
    let cases: [&[u8]; 3] = [
        b"Content-Length: 5\r\nContent-Length: 5\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: 5,05\r\nContent-Length: 5\r\n",
    ];
    for fields in cases {
        refused(&post_with(fields), ParseError::BadFraming);
        let (_, framing) = read_response(&ok_with(fields), Method::Get).unwrap();
        assert_eq!(framing, Framing::Length(5));
    }
}

#[test]
fn lookalikes_of_framing_fields_are_refused() {
    for name in ["Content_Length", "content_length", "Transfer_Encoding", "TRANSFER_ENCODING"] {
        refused(&post_with(format!("{name}: 5\r\n").as_bytes()), ParseError::BadFraming);
    }
}

#[test]
fn transfer_encoding_does_not_exist_in_http10() {
    let request = b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    refused(request, ParseError::BadFraming);
    let response = b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(read_response(response, Method::Get).map(|_| ()), Err(ParseError::BadResponse));
}

#[test]
fn trace_and_connect_have_no_body() {
    for line in ["TRACE /", "CONNECT a.example:1"] {
        let host = if line.starts_with('C') { "a.example:1" } else { "a" };
        let head = |fields: &str| format!("{line} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        assert_eq!(read_request(head("").as_bytes()).unwrap().1, Framing::None);
        refused(head("Content-Length: 1\r\n").as_bytes(), ParseError::BadFraming);
        refused(head("Transfer-Encoding: chunked\r\n").as_bytes(), ParseError::BadFraming);
    }
}

#[test]
fn response_framing_by_case() {
    for (status, method, fields, expected) in [
        (200, Method::Get, "", Framing::CloseDelimited),
        (200, Method::Get, "Content-Length: 5\r\n", Framing::Length(5)),
        (200, Method::Get, "Transfer-Encoding: chunked\r\n", Framing::Chunked),
        (404, Method::Post, "Content-Length: 0\r\n", Framing::Length(0)),
        (200, Method::Head, "Content-Length: 5\r\n", Framing::None),
        (200, Method::Head, "Transfer-Encoding: chunked\r\n", Framing::None),
        (200, Method::Head, "", Framing::None),
        (204, Method::Get, "Content-Length: 5\r\n", Framing::None),
        (304, Method::Get, "Content-Length: 5\r\n", Framing::None),
        (304, Method::Get, "Transfer-Encoding: chunked\r\n", Framing::None),
        (100, Method::Get, "Content-Length: 5\r\n", Framing::None),
        (101, Method::Get, "", Framing::None),
        (205, Method::Get, "", Framing::CloseDelimited),
        (200, Method::Connect, "Content-Length: 5\r\n", Framing::None),
    ] {
        let head = format!("HTTP/1.1 {status} X\r\n{fields}\r\n");
        assert_eq!(read_response(head.as_bytes(), method).unwrap().1, expected, "{head}");
    }
}
