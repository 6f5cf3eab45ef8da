//! Heads both ways, and the meter, byte by byte.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::time::{Duration, Instant};

use ::http::Request;
use h2::ext::Protocol;
use sluice_core::metrics::Abuse;
use sluice_http::{HeadLimits, HeadScanner, ParseError, RequestHead, Scan};

use super::meter::{Bounds, Meter};
use super::request::{Framing, Malformed, check, render};
use super::response::{self, Declared};
use super::{PREFACE, is_preface};

fn text(request: &Request<()>, ended: bool) -> String {
    let mut out = Vec::new();
    render(&mut out, request, check(request, ended).unwrap(), [7; 16]);
    String::from_utf8(out).unwrap()
}

fn get(uri: &str) -> ::http::request::Builder {
    Request::builder().uri(uri)
}

/// What the parser makes of it, behind the translation.
fn verdict(request: &Request<()>) -> Result<(), ParseError> {
    let bytes = text(request, true).into_bytes();
    let limits = HeadLimits { head_bytes_max: 65536, headers_max: 100, target_bytes_max: 8192 };
    let Scan::Complete(length) = HeadScanner::new().scan(&bytes, &limits)? else {
        panic!("no whole head");
    };
    assert_eq!(length, bytes.len(), "nothing of a head may become another");
    RequestHead::new().parse(&bytes, &limits)
}

#[test]
fn a_head_is_said_in_http_1() {
    let request = get("https://a.example/x?y=z").header("accept", "*/*").body(()).unwrap();
    assert_eq!(text(&request, true), "GET /x?y=z HTTP/1.1\r\nhost: a.example\r\naccept: */*\r\n\r\n");
}

#[test]
fn a_body_is_framed_as_it_was_declared() {
    let post = |builder: ::http::request::Builder| builder.method("POST").body(()).unwrap();
    let plain = post(get("http://a/"));
    assert!(text(&plain, false).ends_with("\r\ntransfer-encoding: chunked\r\n\r\n"));
    assert!(!text(&plain, true).contains("transfer-encoding"));
    let counted = post(get("http://a/").header("content-length", "3"));
    assert_eq!(check(&counted, false), Ok(Framing::Length));
    assert!(text(&counted, false).ends_with("host: a\r\ncontent-length: 3\r\n\r\n"));
}

#[test]
fn cookies_become_one_and_a_host_that_agrees_is_not_repeated() {
    let request = get("http://a/").header("cookie", "a=1").header("host", "A").header("cookie", "b=2");
    let text = text(&request.body(()).unwrap(), true);
    assert_eq!(text, "GET / HTTP/1.1\r\nhost: a\r\ncookie: a=1; b=2\r\n\r\n");
}

#[test]
fn what_http_1_refuses_is_refused_by_its_parser() {
    let request = |uri: &str, fields: &[(&str, &str)]| {
        let builder = fields.iter().fold(get(uri), |builder, (name, value)| builder.header(*name, *value));
        verdict(&builder.body(()).unwrap())
    };
    assert_eq!(request("http://a/", &[]), Ok(()));
    assert_eq!(request("/", &[("host", "a")]), Ok(()));
    for fields in [&[("host", "b")][..], &[("host", "a"), ("host", "a")], &[("host", "a"), ("host", "b")]] {
        assert_eq!(request("http://a/", fields), Err(ParseError::BadHost), "{fields:?}");
    }
    assert_eq!(request("/", &[]), Err(ParseError::BadHost));
    assert_eq!(request("/", &[("host", "a"), ("host", "a")]), Err(ParseError::BadHost));
    assert_eq!(request("http://user@a/", &[]), Err(ParseError::BadHost));
    assert_eq!(request("http://a/", &[("content_length", "1")]), Err(ParseError::BadFraming));
    assert_eq!(request("http://a/", &[("transfer_encoding", "chunked")]), Err(ParseError::BadFraming));
    // Obsolete text is no ASCII, and no target either.
    assert_eq!(request("http://a/\u{e9}", &[]), Err(ParseError::BadRequest));
}

#[test]
fn what_http_1_could_not_say_is_malformed() {
    let malformed = |request: Request<()>| assert_eq!(check(&request, true), Err(Malformed), "{request:?}");
    malformed(get("ftp://a/").body(()).unwrap());
    malformed(get("*").header("host", "a").body(()).unwrap());
    malformed(get("/").method("CONNECT").body(()).unwrap());
    let socket = get("http://a/").method("CONNECT").extension(Protocol::from_static("websocket"));
    malformed(socket.header("content-length", "0").body(()).unwrap());
    assert_eq!(check(&get("*").method("OPTIONS").body(()).unwrap(), true), Ok(Framing::None));
}

#[test]
fn a_websocket_asks_for_an_upgrade() {
    let socket = get("https://a/chat").method("CONNECT").extension(Protocol::from_static("websocket"));
    let request =
        socket.header("sec-websocket-version", "13").header("sec-websocket-key", "x").body(()).unwrap();
    assert_eq!(check(&request, false), Ok(Framing::Tunnel));
    let text = text(&request, false);
    assert!(text.starts_with("GET /chat HTTP/1.1\r\nhost: a\r\nsec-websocket-version: 13\r\n"), "{text}");
    assert!(text.ends_with(
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: BwcHBwcHBwcHBwcHBwcHBw==\r\n\r\n"
    ));
    // The word for what is not known is the one that is refused.
    let other = get("https://a/").method("CONNECT").extension(Protocol::from_static("connect-udp"));
    assert!(self::text(&other.body(()).unwrap(), false).starts_with("CONNECT a HTTP/1.1\r\n"));
}

#[test]
fn an_answer_loses_what_is_about_its_connection() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nKeep-Alive: timeout=5\r\n\
        Transfer-Encoding: chunked\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nConnection: close\r\n\r\n";
    assert_eq!(response::length(head), Some(head.len()));
    let parsed = response::parse(head).unwrap();
    assert_eq!((parsed.response.status().as_u16(), parsed.declared), (200, Declared::Chunked));
    let names: Vec<&str> = parsed.response.headers().keys().map(|name| name.as_str()).collect();
    assert_eq!(names, ["content-type", "set-cookie"]);
    assert_eq!(parsed.response.headers().get_all("set-cookie").iter().count(), 2);
    let counted = response::parse(b"HTTP/1.1 404 Not Found\r\ncontent-length: 12\r\n\r\n").unwrap();
    assert_eq!(counted.declared, Declared::Length(12));
    assert_eq!(response::parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().declared, Declared::Close);
    assert!(response::parse(b"HTTP/1.1 2x0 OK\r\n\r\n").is_none());
}

#[test]
fn trailers_are_fields() {
    let trailers = response::trailers(b"grpc-status: 0\r\nx: y: z\r\n").unwrap();
    assert_eq!((&trailers["grpc-status"], &trailers["x"]), (&"0".parse().unwrap(), &"y: z".parse().unwrap()));
    assert!(response::trailers(b"").unwrap().is_empty());
}

#[test]
fn the_preface_is_known_by_its_first_byte_that_differs() {
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
fn bounds_are_met_exactly_however_the_bytes_come() {
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
fn answers_cost_nothing_and_bytes_that_were_read_allow_for_more() {
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
fn words_are_in_their_places() {
    for (index, abuse) in Abuse::ALL.into_iter().enumerate() {
        assert_eq!(abuse as usize, index, "{}", abuse.word());
    }
}
