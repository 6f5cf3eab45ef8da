//! Heads in both directions, and the meter, byte by byte.
#![allow(clippy::unwrap_used, reason = "a panic reports a failed test")]

use std::time::{Duration, Instant};

use ::http::uri::Scheme;
use ::http::{Method, Request};
use h2::ext::Protocol;
use sluice_core::metrics::Abuse;
use sluice_http::Method::{Connect, Get};
use sluice_http::{
    FieldBlock, HeadLimits, HeadSink, ParseError, RequestHead, StreamFraming as Framing, TrailerReader,
    Trailers, request_framing,
};

use super::meter::{Bounds, Meter};
use super::request::{self, Malformed, check};
use super::{PREFACE, fields, is_preface};

fn get(uri: &str) -> ::http::request::Builder {
    Request::builder().uri(uri)
}

/// Reads a request.
fn read(request: &Request<()>, ended: bool) -> Result<RequestHead, ParseError> {
    let limits = HeadLimits { head_bytes_max: 65536, headers_max: 100, target_bytes_max: 8192 };
    let mut head = RequestHead::new();
    let framing = check(request, ended).unwrap();
    request::read(request, framing, &mut head, &limits, || [7; 16])?;
    Ok(head)
}

fn lines(head: &RequestHead) -> Vec<String> {
    head.fields()
        .map(|field| format!("{}: {}", field.name.escape_ascii(), field.value.escape_ascii()))
        .collect()
}

#[test]
fn a_request_head_is_converted() {
    let request = get("https://a.example/x?y=z").header("accept", "*/*").body(()).unwrap();
    let head = read(&request, true).unwrap();
    assert_eq!((head.method(), head.path_and_query(), head.host()), (Get, &b"/x?y=z"[..], &b"a.example"[..]));
    assert_eq!(lines(&head), ["host: a.example", "accept: */*"]);
}

#[test]
fn a_body_is_framed_as_declared() {
    let post = |builder: ::http::request::Builder| builder.method("POST").body(()).unwrap();
    let framing = |request: &Request<()>, ended| request_framing(&read(request, ended).unwrap());
    let plain = post(get("http://a/"));
    assert_eq!(framing(&plain, false), Ok(sluice_http::Framing::Stream));
    assert_eq!(framing(&plain, true), Ok(sluice_http::Framing::None));
    let counted = post(get("http://a/").header("content-length", "3"));
    assert_eq!(check(&counted, false), Ok(Framing::Length));
    assert_eq!(framing(&counted, false), Ok(sluice_http::Framing::Length(3)));
}

#[test]
fn without_an_authority_the_host_field_is_used() {
    assert_eq!(read(&get("/").header("host", "a").body(()).unwrap(), true).unwrap().host(), b"a");
    assert_eq!(
        read(&get("http://a/").header("host", "b").body(()).unwrap(), true).unwrap_err(),
        ParseError::BadHost
    );
    assert_eq!(read(&get("http://user@a/").body(()).unwrap(), true).unwrap_err(), ParseError::BadHost);
}

#[test]
fn heads_that_http_1_cannot_express_are_malformed() {
    let malformed = |request: Request<()>| assert_eq!(check(&request, true), Err(Malformed), "{request:?}");
    malformed(get("ftp://a/").body(()).unwrap());
    malformed(get("*").header("host", "a").body(()).unwrap());
    malformed(get("/").method("CONNECT").body(()).unwrap());
    let socket = get("http://a/").method("CONNECT").extension(Protocol::from_static("websocket"));
    malformed(socket.header("content-length", "0").body(()).unwrap());
    assert_eq!(check(&get("*").method("OPTIONS").body(()).unwrap(), true), Ok(Framing::None));
}

#[test]
fn a_websocket_request_becomes_an_upgrade() {
    let socket = get("https://a/chat").method("CONNECT").extension(Protocol::from_static("websocket"));
    let request =
        socket.header("sec-websocket-version", "13").header("sec-websocket-key", "x").body(()).unwrap();
    assert_eq!(check(&request, false), Ok(Framing::Tunnel));
    let head = read(&request, false).unwrap();
    assert_eq!((head.method(), head.path(), head.upgrade()), (Get, &b"/chat"[..], Some(&b"websocket"[..])));
    assert_eq!(head.get(b"sec-websocket-key"), Some(&b"BwcHBwcHBwcHBwcHBwcHBw=="[..]));
    // An unknown protocol is represented as the method that is refused.
    let other = get("https://a/").method("CONNECT").extension(Protocol::from_static("connect-udp"));
    assert_eq!(read(&other.body(()).unwrap(), false).unwrap().method(), Connect);
}

/// A head as written by the encoder.
fn block(write: impl FnOnce(&mut FieldBlock)) -> FieldBlock {
    let mut block = FieldBlock::default();
    write(&mut block);
    block.end();
    block
}

#[test]
fn a_response_head_is_converted() {
    let head = block(|block| {
        block.response(418, b"ignored");
        block.field(b"Content-Type", b"text/plain");
        block.field(b"Set-Cookie", b"a");
        block.field(b"X-Empty", b"");
        block.field(b"Set-Cookie", b"b");
        block.connection_field(b"Connection", b"close");
        block.framing(sluice_http::Framing::Length(12));
    });
    let response = fields::response(&head).unwrap();
    assert_eq!(response.status().as_u16(), 418);
    let shown: Vec<(&[u8], &[u8])> = fields::shown(response.headers()).collect();
    let wanted: [(&[u8], &[u8]); 5] = [
        (b"content-type", b"text/plain"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"x-empty", b""),
        (b"content-length", b"12"),
    ];
    assert_eq!(shown, wanted);
    assert!(fields::request(&head, &Scheme::HTTP).is_none());
    assert!(fields::response(&block(|block| block.field(b"a", b"b"))).is_none());
}

#[test]
fn a_request_is_sent_with_its_authority() {
    let head = |target: &[u8], host: &[u8]| block(|block| block.request(b"PATCH", target, host));
    let request = fields::request(&head(b"/x?y=z", b"a:81"), &Scheme::HTTPS).unwrap();
    assert_eq!(
        (request.method(), request.uri().to_string()),
        (&Method::PATCH, "https://a:81/x?y=z".to_owned())
    );
    let all = fields::request(&block(|block| block.request(b"OPTIONS", b"*", b"a")), &Scheme::HTTP).unwrap();
    assert_eq!(all.uri().path(), "*");
    for (target, host) in [(&b"/\"<>"[..], &b"a"[..]), (b"/", b"a b")] {
        assert!(
            !fields::can_say(target, host) && fields::request(&head(target, host), &Scheme::HTTP).is_none()
        );
    }
}

#[test]
fn trailers_are_fields() {
    let mut reader = TrailerReader::new(99);
    reader.take(b"grpc-status", b"0").unwrap();
    reader.take(b"x", b"y: z").unwrap();
    let trailers = fields::trailers(reader.trailers()).unwrap();
    assert_eq!((&trailers["grpc-status"], &trailers["x"]), (&"0".parse().unwrap(), &"y: z".parse().unwrap()));
    assert!(fields::trailers(Trailers::NONE).unwrap().is_empty());
}

#[test]
fn the_preface_is_rejected_at_the_first_different_byte() {
    assert_eq!((is_preface(b""), is_preface(b"PRI * H"), is_preface(b"PUT ")), (None, None, Some(false)));
    assert_eq!(is_preface(&[PREFACE, b"x"].concat()), Some(true));
}

fn meter(resets_max: u64, control_frames_max: u64) -> Meter {
    let mut meter = Meter::new(
        Bounds { interval: Duration::from_secs(3600), resets_max, control_frames_max },
        Instant::now(),
    );
    meter.feed(PREFACE);
    meter
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1];
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn limits_are_exact_for_any_division_of_the_bytes() {
    let reset = frame(3, 0, &[0; 4]);
    for step in [1, 7, 64] {
        let mut meter = meter(2, 2);
        let data = [frame(0, 1, &[3; 40]), reset.clone(), reset.clone()].concat();
        data.chunks(step).for_each(|bytes| meter.feed(bytes));
        assert_eq!(meter.abuse(), None);
        meter.feed(&reset);
        assert_eq!(meter.abuse(), Some(Abuse::Resets));
    }
}

#[test]
fn acknowledgements_are_free_and_sent_bytes_allow_more_frames() {
    let mut meter = meter(1, 2);
    for _ in 0..10 {
        meter.feed(&frame(6, 1, &[0; 8]));
        meter.feed(&frame(4, 1, &[]));
    }
    meter.sent(2048);
    (0..4).for_each(|_| meter.feed(&frame(8, 0, &[0; 4])));
    assert_eq!(meter.abuse(), None);
    meter.feed(&frame(6, 0, &[0; 8]));
    assert_eq!(meter.abuse(), Some(Abuse::ControlFrames));
}

#[test]
fn abuses_are_indexed_in_declaration_order() {
    for (index, abuse) in Abuse::ALL.into_iter().enumerate() {
        assert_eq!(abuse as usize, index, "{}", abuse.word());
    }
}
