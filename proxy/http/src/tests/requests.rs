//! The request line, the target, Host, and the grammar of fields.

use super::*;

fn with_target(method: &str, target: &str, host: &str) -> Vec<u8> {
    format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
}

#[test]
fn request_head_is_parsed() {
    let bytes = b"POST /a/b?c=d HTTP/1.1\r\nHost: A.example:8080\r\nX-Some: \t v w \t\r\nEmpty:\r\n\r\n";
    let (head, framing) = read_request(bytes).unwrap();
    assert_eq!((head.method(), head.method_bytes()), (Method::Post, b"POST".as_slice()));
    assert_eq!(head.version(), Version::Http11);
    assert_eq!((head.target(), head.path_and_query()), (b"/a/b?c=d".as_slice(), b"/a/b?c=d".as_slice()));
    assert_eq!(head.path(), b"/a/b");
    assert_eq!((head.host(), head.host_name()), (b"A.example:8080".as_slice(), b"A.example".as_slice()));
    assert_eq!(head.get(b"x-some"), Some(b"v w".as_slice()));
    assert_eq!(head.get(b"empty"), Some(b"".as_slice()));
    assert_eq!(head.get(b"absent"), None);
    assert_eq!(head.field(FieldKind::Host), Some(b"A.example:8080".as_slice()));
    assert_eq!(head.fields().count(), 3);
    assert_eq!(framing, Framing::None);
}

#[test]
fn nothing_of_the_previous_head_remains() {
    let mut head = RequestHead::new();
    let first = get_with(b"Connection: close\r\nExpect: x\r\nUpgrade: a\r\n");
    head.parse(&first, &LIMITS).unwrap();
    assert!(!head.keep_alive());
    head.parse(b"GET http://b HTTP/1.1\r\nHost: b\r\n\r\n", &LIMITS).unwrap();
    assert!(head.keep_alive());
    assert_eq!((head.expect(), head.fields().count()), (Expect::None, 1));
    assert_eq!((head.host(), head.path_and_query()), (b"b".as_slice(), b"/".as_slice()));
}

#[test]
fn refused_head_contains_nothing_of_the_previous_one() {
    let mut head = RequestHead::new();
    let bytes = b"GET /secret HTTP/1.1\r\nHost: a\r\n\r\n";
    head.parse(bytes, &LIMITS).unwrap();
    let tight = HeadLimits { head_bytes_max: 1, ..LIMITS };
    for limits in [&LIMITS, &tight] {
        let refused = head.parse(b"GET /x HTTP/1.1\r\nA : b\r\n\r\n", limits);
        assert!(refused.is_err());
        assert_eq!((head.target(), head.host(), head.fields().count()), (b"".as_slice(), b"".as_slice(), 0));
    }
}

#[test]
fn versions() {
    for (version, error) in [
        ("HTTP/1.2", ParseError::VersionNotSupported),
        ("HTTP/2.0", ParseError::VersionNotSupported),
        ("HTTP/3.0", ParseError::VersionNotSupported),
        ("HTTP/0.9", ParseError::VersionNotSupported),
        ("HTTP/9.9", ParseError::VersionNotSupported),
        ("HTTP/2", ParseError::BadRequest),
        ("HTTP/1.10", ParseError::BadRequest),
        ("HTTP/1.", ParseError::BadRequest),
        ("HTTP/1.1x", ParseError::BadRequest),
        ("http/1.1", ParseError::BadRequest),
        ("HTTPS/1.1", ParseError::BadRequest),
        ("HTTP /1.1", ParseError::BadRequest),
        ("HTTQ/1.1 HTTP/1.1", ParseError::BadRequest),
        ("HTTP/1.1 HTTP/1.1", ParseError::BadRequest),
    ] {
        refused(format!("GET / {version}\r\nHost: a\r\n\r\n").as_bytes(), error);
    }
}

#[test]
fn request_lines_with_other_separators_are_refused() {
    for line in ["GET  / HTTP/1.1", "GET /  HTTP/1.1", "GET /\tHTTP/1.1", "GET  HTTP/1.1", "GET HTTP/1.1"] {
        refused(format!("{line}\r\nHost: a\r\n\r\n").as_bytes(), ParseError::BadRequest);
    }
}

#[test]
fn valid_targets_are_parsed() {
    for (method, target, host, path_and_query, path) in [
        ("GET", "/", "a", "/", "/"),
        ("GET", "//x/../y?q?r", "a", "//x/../y?q?r", "//x/../y"),
        ("GET", "/|{}\"<>^`\\[]%", "a", "/|{}\"<>^`\\[]%", "/|{}\"<>^`\\[]%"),
        ("OPTIONS", "*", "a", "*", "*"),
        ("GET", "http://a.example:81/x?y", "A.EXAMPLE:81", "/x?y", "/x"),
        ("GET", "HTTPS://a/", "a", "/", "/"),
        ("GET", "http://a", "a", "/", "/"),
        ("GET", "http://a?q", "a", "/?q", "/"),
        ("OPTIONS", "http://a", "a", "*", "*"),
        ("OPTIONS", "http://a/", "a", "/", "/"),
        ("OPTIONS", "http://a?q", "a", "/?q", "/"),
        ("CONNECT", "a.example:443", "a.example:443", "a.example:443", "a.example:443"),
    ] {
        let (head, _) = read_request(&with_target(method, target, host)).unwrap();
        assert_eq!(head.target(), target.as_bytes());
        assert_eq!(head.path_and_query(), path_and_query.as_bytes(), "{target}");
        assert_eq!(head.path(), path.as_bytes(), "{target}");
    }
}

#[test]
fn invalid_targets_are_refused() {
    for (method, target) in [
        ("GET", "*"),
        ("GET", "x"),
        ("GET", "?x"),
        ("GET", "a:80"),
        ("GET", "/a#b"),
        ("GET", "/\u{e9}"),
        ("GET", "/\x7f"),
        ("GET", "http:///x"),
        ("GET", "http:/x"),
        ("GET", "http://"),
        ("GET", "http://user@a/"),
        ("GET", "http://a:x/"),
        ("GET", "ftp://a/"),
        ("OPTIONS", "*/"),
        ("CONNECT", "/"),
        ("CONNECT", "http://a/"),
    ] {
        refused(&with_target(method, target, "a"), ParseError::BadRequest);
    }
}

#[test]
fn valid_hosts_are_accepted() {
    for (host, name) in [
        ("a", "a"),
        ("a.example:80", "a.example"),
        ("1.2.3.4:65535", "1.2.3.4"),
        ("[::1]", "[::1]"),
        ("[2001:db8::1.2.3.4]:0", "[2001:db8::1.2.3.4]"),
        ("xn--a_b~c%20!$&'()*+;=", "xn--a_b~c%20!$&'()*+;="),
    ] {
        let (head, _) = read_request(&with_target("GET", "/", host)).unwrap();
        assert_eq!((head.host(), head.host_name()), (host.as_bytes(), name.as_bytes()));
    }
    let longest = "a".repeat(255);
    assert!(read_request(&with_target("GET", "/", &longest)).is_ok());
}

#[test]
fn invalid_hosts_are_refused() {
    let too_long = "a".repeat(256);
    for host in [
        "",
        ":80",
        "a:",
        "a:65536",
        "a:000080",
        "a:8o",
        "a:80:80",
        "a b",
        "a,b",
        "a/b",
        "a?b",
        "a#b",
        "u@a",
        "{",
        "a\"",
        "a\\b",
        "%",
        "%4",
        "%zz",
        "[",
        "[]",
        "[::1",
        "::1",
        "[::1]x",
        "[::1%25eth0]",
        "[1.2.3.4]",
        "[v1.a]",
        "\u{e9}",
        &too_long,
    ] {
        refused(&with_target("GET", "/", host), ParseError::BadHost);
    }
}

#[test]
fn exactly_one_host_must_equal_the_targets_authority() {
    refused(b"GET / HTTP/1.1\r\n\r\n", ParseError::BadHost);
    refused(&get_with(b"Host: a.example\r\n"), ParseError::BadHost);
    refused(b"GET http://a/ HTTP/1.1\r\n\r\n", ParseError::BadHost);
    refused(&with_target("GET", "http://a/", "b"), ParseError::BadHost);
    refused(&with_target("GET", "http://a:80/", "a"), ParseError::BadHost);
    refused(b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", ParseError::BadHost);
    for head in [b"GET / HTTP/1.0\r\n\r\n".as_slice(), b"GET / HTTP/1.0\r\nHost:\r\n\r\n"] {
        assert_eq!(read_request(head).unwrap().0.host(), b"");
    }
    let (head, _) = read_request(b"GET http://a/ HTTP/1.0\r\n\r\n").unwrap();
    assert_eq!(head.host(), b"a");
}

#[test]
fn malformed_request_fields_are_refused() {
    let fields: [&[u8]; 13] = [
        b"A : b\r\n",
        b"A\t: b\r\n",
        b": b\r\n",
        b":\r\n",
        b"A\r\n",
        b"A b: c\r\n",
        b"A@: b\r\n",
        b"\xc3\xa9: b\r\n",
        b"A: \x01\r\n",
        b"A: b\x0bc\r\n",
        b"A: \x7f\r\n",
        b"A: \x1b[0m\r\n",
        b"Connection: @@\r\n",
    ];
    for field in fields {
        refused(&get_with(field), ParseError::BadRequest);
    }
    let (head, _) = read_request(&get_with(b"|~: a\tb \xff\x80\r\n")).unwrap();
    assert_eq!(head.get(b"|~"), Some(b"a\tb \xff\x80".as_slice()));
}
