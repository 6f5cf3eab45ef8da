//! Heads that would have another meaning in HTTP/1.1: none of them reaches an origin with a different meaning.

use super::frames::{DATA, END_STREAM, GOAWAY, HEADERS, PROTOCOL_ERROR, RST_STREAM, Raw, request};
use super::setup;
use crate::support::{Origin, Proxy};

/// Stands for a status: the stream was reset, or the connection ended.
const REFUSED: u16 = 0;

/// The outcome of a head.
fn verdict(raw: &mut Raw, stream: u32, fields: &[(&str, &[u8])]) -> u16 {
    raw.head(stream, END_STREAM, fields);
    loop {
        let frame = raw.next().expect("the connection ended without a frame");
        match frame.kind {
            HEADERS if frame.stream == stream => return frame.status(),
            RST_STREAM if frame.stream == stream => {
                assert_eq!(frame.error(), PROTOCOL_ERROR);
                return REFUSED;
            }
            // Bytes that no field can contain are a compression error (RFC 9113 section 4.3).
            GOAWAY => return REFUSED,
            _ => {}
        }
    }
}

type Fields<'a> = Vec<(&'a str, &'a [u8])>;

fn check(proxy: &Proxy, cases: &[(Fields<'_>, u16)]) {
    for (fields, wanted) in cases {
        assert_eq!(verdict(&mut Raw::connect(proxy), 1, fields), *wanted, "{fields:?}");
    }
    assert_eq!(verdict(&mut Raw::connect(proxy), 1, &request("GET", "/last")), 200);
}

fn with<'a>(fields: &[(&'a str, &'a [u8])]) -> Fields<'a> {
    [&request("GET", "/"), fields].concat()
}

fn pseudo<'a>(method: &'a [u8], scheme: &'a [u8], authority: &'a [u8], path: &'a [u8]) -> Fields<'a> {
    vec![(":method", method), (":scheme", scheme), (":authority", authority), (":path", path)]
}

#[test]
fn a_field_never_becomes_two() {
    let origin = Origin::saying("");
    let Some(proxy) = setup(&origin).start() else { return };
    let cases: [(&str, &[u8]); 14] = [
        ("x", b"a\r\nhost: b"),
        ("x", b"a\nb: c"),
        ("x", b"a\rb: c"),
        ("x", b"a\0"),
        ("x", b"\x7f"),
        ("x y", b"a"),
        ("x:y", b"a"),
        ("x\r\ny", b"a"),
        ("", b"a"),
        ("X", b"a"),
        ("connection", b"close"),
        ("transfer-encoding", b"chunked"),
        ("upgrade", b"h2c"),
        ("te", b"gzip"),
    ];
    let cases: Vec<_> = cases.iter().map(|case| (with(&[*case]), REFUSED)).collect();
    check(&proxy, &cases);
    assert_eq!(origin.requests().len(), 1, "the last request");
}

#[test]
fn a_target_never_becomes_another() {
    let origin = Origin::saying("");
    let Some(proxy) = setup(&origin).start() else { return };
    let cases = [
        (pseudo(b"GET", b"http", b"a", b""), REFUSED),
        (pseudo(b"GET", b"http", b"a", b"x"), REFUSED),
        (pseudo(b"GET", b"http", b"a", b"*"), REFUSED),
        (pseudo(b"GET", b"http", b"a", b"http://b/"), REFUSED),
        (pseudo(b"GET", b"http", b"a", b"/ HTTP/1.1\r\nx: y"), REFUSED),
        (pseudo(b"GET", b"http", b"a", b"/a b"), REFUSED),
        (pseudo(b"GET", b"http", b"a", b"/\t"), REFUSED),
        (pseudo(b"GET", b"http", b"a", b"/\xff"), REFUSED),
        (pseudo(b"GET", b"http", b"a", "/\u{e9}".as_bytes()), 400),
        (pseudo(b"GET", b"ftp", b"a", b"/"), REFUSED),
        (pseudo(b"GET", b"", b"a", b"/"), REFUSED),
        (pseudo(b"GET", b"http", b"", b"/"), REFUSED),
        (pseudo(b"GET", b"http", b"u@a", b"/"), 400),
        (pseudo(b"GET", b"http", b"u:p@a", b"/"), 400),
        (pseudo(b"GET", b"http", b"a,b", b"/"), 400),
        (pseudo(b"GET", b"http", b"a b", b"/"), REFUSED),
        (pseudo(b"GET", b"http", b"a:99999", b"/"), 400),
        (pseudo(b"G T", b"http", b"a", b"/"), REFUSED),
        (pseudo(b"", b"http", b"a", b"/"), REFUSED),
        (vec![(":method", &b"CONNECT"[..]), (":authority", b"a:443")], 501),
    ];
    check(&proxy, &cases);
    assert_eq!(origin.requests().len(), 1, "the last request");
}

#[test]
fn there_is_exactly_one_host() {
    let origin = Origin::saying("");
    let Some(proxy) = setup(&origin).start() else { return };
    let none: [(&str, &[u8]); 3] = [(":method", b"GET"), (":scheme", b"http"), (":path", b"/")];
    let cases = [
        (with(&[("host", b"a.test")]), 200),
        (with(&[("host", b"b.test")]), 400),
        (with(&[("host", b"a.test"), ("host", b"a.test")]), 400),
        ([&none[..], &[("host", b"a.test")]].concat(), 200),
        (none.to_vec(), 400),
        ([&none[..], &[("host", b"a"), ("host", b"b")]].concat(), 400),
        (with(&[("content_length", b"0")]), 400),
    ];
    check(&proxy, &cases);
    let hosts: Vec<_> = origin.requests().iter().map(|request| request.all("host").len()).collect();
    assert_eq!(hosts, [1, 1, 1]);
}

/// The h2 crate's parser removes a fragment, so the origin gets the path that was used for routing.
#[test]
fn fragments_are_removed() {
    let origin = Origin::saying("");
    let Some(proxy) = setup(&origin).start() else { return };
    let mut raw = Raw::connect(&proxy);
    let status = verdict(&mut raw, 1, &pseudo(b"GET", b"http", b"a", b"/a#/../b"));
    assert_eq!((status, origin.last().target()), (200, "/a"));
}

#[test]
fn bytes_before_the_101_are_not_a_request() {
    let origin = Origin::saying("refused");
    let Some(proxy) = setup(&origin).start() else { return };
    let mut raw = Raw::connect(&proxy);
    let fields = [&pseudo(b"CONNECT", b"http", b"a", b"/ws")[..], &[(":protocol", b"websocket")]].concat();
    raw.head(1, 0, &fields);
    raw.send(DATA, 0, 1, b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(raw.outcome().status(), 200, "the origin does not know websockets");
    assert_eq!(verdict(&mut raw, 3, &request("GET", "/last")), 200);
    let targets: Vec<_> = origin.requests().iter().map(|request| request.target().to_owned()).collect();
    assert_eq!(targets, ["/ws", "/last"]);
}
