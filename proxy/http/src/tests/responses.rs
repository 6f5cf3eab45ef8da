//! The status line, and what a response's fields request for the connection.

use super::*;

#[test]
fn valid_status_lines_are_parsed() {
    let cases: [(&[u8], u16, &[u8]); 6] = [
        (b"HTTP/1.1 200 OK", 200, b"OK"),
        (b"HTTP/1.1 200 ", 200, b""),
        (b"HTTP/1.1 200", 200, b""),
        (b"HTTP/1.0 599 a\tb c", 599, b"a\tb c"),
        (b"HTTP/1.1 100 Continue", 100, b"Continue"),
        (b"HTTP/1.1 500 \xc3\xa4", 500, b"\xc3\xa4"),
    ];
    for (line, status, reason) in cases {
        let (head, _) = read_response(&[line, b"\r\n\r\n"].concat(), Method::Get).unwrap();
        assert_eq!((head.status(), head.reason()), (status, reason), "{}", line.escape_ascii());
    }
}

#[test]
fn malformed_status_lines_are_refused() {
    let cases: [&[u8]; 14] = [
        b"HTTP/1.1 99 X",
        b"HTTP/1.1 099 X",
        b"HTTP/1.1 600 X",
        b"HTTP/1.1 2000 X",
        b"HTTP/1.1 20x X",
        b"HTTP/1.1 -20 X",
        b"HTTP/1.1  200 X",
        b"HTTP/1.1\t200 X",
        b"HTTP/1.1200 X",
        b"HTTP/1.1",
        b"HTTP/1.2 200 X",
        b"HTTP/1.1 200 X\x01",
        b"HTTP/1.1 200 X\x7f",
        b"HTTP/1.1 200X",
    ];
    for line in cases {
        let found = read_response(&[line, b"\r\n\r\n"].concat(), Method::Get).map(|_| ());
        assert_eq!(found, Err(ParseError::BadResponse), "{}", line.escape_ascii());
    }
}

#[test]
fn malformed_response_fields_are_refused() {
    let cases: [&[u8]; 7] = [
        b"A : b\r\n",
        b": b\r\n",
        b"A\r\n",
        b"A b: c\r\n",
        b"A: \x01\r\n",
        b"\xc3\xa9: b\r\n",
        b"Connection: @\r\n",
    ];
    for fields in cases {
        let found = read_response(&ok_with(fields), Method::Get).map(|_| ());
        assert_eq!(found, Err(ParseError::BadResponse), "{}", fields.escape_ascii());
    }
    let many = ok_with(&b"a:\r\n".repeat(LIMITS.headers_max + 1));
    assert_eq!(read_response(&many, Method::Get).map(|_| ()), Err(ParseError::BadResponse));
    let exact = ok_with(&b"a:\r\n".repeat(LIMITS.headers_max));
    assert!(read_response(&exact, Method::Get).is_ok());
}

#[test]
fn response_keep_alive() {
    for (version, connection, expected) in [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: keep-alive\r\n", true),
        ("1.0", "Connection: keep-alive\r\nConnection: close\r\n", false),
    ] {
        let head = format!("HTTP/{version} 200 OK\r\n{connection}\r\n");
        assert_eq!(read_response(head.as_bytes(), Method::Get).unwrap().0.keep_alive(), expected);
    }
}

#[test]
fn response_upgrades() {
    for (status, fields, expected) in [
        (101, "Connection: Upgrade\r\nUpgrade: websocket\r\n", Some(b"websocket".as_slice())),
        (101, "Upgrade: websocket\r\n", None),
        (101, "Connection: Upgrade\r\n", None),
        (101, "Connection: Upgrade\r\nUpgrade: h2c\r\n", None),
        (200, "Connection: Upgrade\r\nUpgrade: websocket\r\n", None),
    ] {
        let head = format!("HTTP/1.1 {status} X\r\n{fields}\r\n");
        assert_eq!(read_response(head.as_bytes(), Method::Get).unwrap().0.upgrade(), expected);
    }
}
