//! Any bytes as a request head and as a response head: divisions agree, and the forwarded head is one clean message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_http::{
    FieldKind, Framing, HeadLimits, HeadScanner, ListenerFields, Method, ParseError, RequestForward, RequestHead,
    ResponseForward, ResponseHead, Scan, Version, encode_request, encode_response, request_framing,
    response_framing, skip_leading_crlf,
};

// The strict reader of the property tests, which is independent of the parser.
#[allow(dead_code, reason = "the unit tests use more of it")]
#[path = "../../http/src/tests/strict.rs"]
mod strict;

/// Small, so that the fuzzer reaches each limit.
const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 1024, headers_max: 16, target_bytes_max: 256 };
/// The forwarded head may be longer than the received one.
const OUT_LIMITS: HeadLimits = HeadLimits { head_bytes_max: 8192, headers_max: 64, target_bytes_max: 1024 };

fuzz_target!(|bytes: &[u8]| {
    request(bytes);
    response(bytes);
});

fn request(bytes: &[u8]) {
    let bytes = &bytes[skip_leading_crlf(bytes)..];
    let Ok(Scan::Complete(end)) = scan_divided(HeadScanner::new, bytes) else { return };
    let mut head = RequestHead::new();
    let Ok(framing) = head.parse(&bytes[..end], &LIMITS).and_then(|()| request_framing(&head)) else {
        return;
    };
    // sluice responds to CONNECT itself and never forwards it.
    if head.method() == Method::Connect {
        return;
    }
    for (trusted, via) in [(false, false), (true, true)] {
        forward_request(&head, framing, trusted, via);
    }
}

fn forward_request(head: &RequestHead, framing: Framing, trusted: bool, via: bool) {
    let host = if head.host().is_empty() { b"fallback" } else { head.host() };
    let forward = RequestForward {
        path_and_query: head.path_and_query(),
        host,
        framing,
        client_ip: b"192.0.2.1",
        proto: b"http",
        trusted,
        request_id: b"id",
        request_start: b"t=1.000",
        continued: false,
        via,
        upgrade: head.upgrade(),
        dropped: &[],
        is_early: false,
        traceparent: None,
        identity: None,
        edits: None,
    };
    let mut out = Vec::new();
    encode_request(&mut out, head, &forward);
    let strict = strict::read_strictly(&out);
    strict::assert_clean_request(&strict);

    let scan = HeadScanner::new().scan(&out, &OUT_LIMITS);
    assert_eq!(scan, Ok(Scan::Complete(out.len())), "one request and nothing after it");
    let mut again = RequestHead::new();
    again.parse(&out, &OUT_LIMITS).expect("sluice accepts its own output");
    assert_eq!(request_framing(&again), Ok(framing));
    assert_eq!(again.method_bytes(), head.method_bytes());
    assert_eq!(again.path_and_query(), head.path_and_query());
    assert_eq!(again.host(), host);
    assert_eq!(again.upgrade().is_some(), head.upgrade().is_some());
    if !trusted {
        assert_eq!(strict.value("x-forwarded-for"), "192.0.2.1");
        assert_eq!(strict.value("x-forwarded-proto"), "http");
        assert_eq!(strict.values("forwarded").len(), 0, "Forwarded of an untrusted peer");
    }
    assert_none_nominated(head, &again);
}

/// Fields that Connection nominates are not forwarded, except those that the proxy renders itself.
fn assert_none_nominated(head: &RequestHead, again: &RequestHead) {
    use FieldKind::*;
    let nominations = head.fields().filter(|field| field.kind == Connection);
    for name in nominations.flat_map(|field| field.value.split(|&byte| byte == b',')) {
        let name = name.trim_ascii();
        let kind = FieldKind::of(name);
        let rendered = matches!(
            kind,
            Host | ContentLength
                | TransferEncoding
                | Connection
                | Upgrade
                | XForwardedFor
                | XForwardedProto
                | XForwardedHost
                | XRequestId
                | XRequestStart
                | Via
        );
        assert!(rendered || name == b"close" || again.get(name).is_none(), "{}", name.escape_ascii());
    }
}

fn response(bytes: &[u8]) {
    let Ok(Scan::Complete(end)) = scan_divided(HeadScanner::for_response, bytes) else { return };
    let mut head = ResponseHead::new();
    if head.parse(&bytes[..end], &LIMITS).is_err() {
        return;
    }
    for method in [Method::Get, Method::Head] {
        for client_version in [Version::Http11, Version::Http10] {
            for keep_alive in [false, true] {
                forward_response(&head, method, client_version, keep_alive);
            }
        }
    }
}

fn forward_response(head: &ResponseHead, request_method: Method, client_version: Version, keep_alive: bool) {
    let Ok(framing) = response_framing(head, request_method) else { return };
    // As the exchange chooses it.
    let towards = framing.towards(client_version);
    let upgrade = head.upgrade().is_some();
    let forward = ResponseForward {
        framing: towards,
        keep_alive,
        client_version,
        request_method,
        via: true,
        is_encoded: false,
        upgrade,
        edits: None,
        extra: [None; 5],
        listener: ListenerFields::NONE,
    };
    let mut out = Vec::new();
    encode_response(&mut out, head, &forward);
    let strict = strict::read_strictly(&out);
    let framed = strict.values("content-length").len() + strict.values("transfer-encoding").len();
    assert!(framed <= 1, "at most one framing field");

    let scan = HeadScanner::for_response().scan(&out, &OUT_LIMITS);
    assert_eq!(scan, Ok(Scan::Complete(out.len())), "one response and nothing after it");
    let mut again = ResponseHead::new();
    again.parse(&out, &OUT_LIMITS).expect("sluice accepts its own output");
    assert_eq!(again.status(), head.status());
    assert_eq!(again.upgrade(), head.upgrade());
    assert_eq!(response_framing(&again, request_method), Ok(towards));
    if head.status() >= 200 {
        let stays = keep_alive && towards != Framing::CloseDelimited;
        assert_eq!(again.keep_alive(), stays, "whether the client's connection stays open");
    }
}

/// Scans at once, byte by byte, and in steps that the bytes choose; all results must agree.
fn scan_divided(scanner: fn() -> HeadScanner, bytes: &[u8]) -> Result<Scan, ParseError> {
    let whole = scanner().scan(bytes, &LIMITS);
    assert_eq!(scan_in_steps(scanner(), bytes, |_| 1), whole, "byte by byte");
    assert_eq!(scan_in_steps(scanner(), bytes, |byte| 1 + usize::from(byte) % 13), whole, "in steps");
    if let Ok(Scan::Complete(end)) = whole {
        assert_eq!(scanner().scan(&bytes[..end], &LIMITS), whole, "without the bytes after it");
        assert_eq!(scanner().scan(&bytes[..end - 1], &LIMITS), Ok(Scan::Partial), "one byte short");
    }
    whole
}

fn scan_in_steps(
    mut scanner: HeadScanner,
    bytes: &[u8],
    step: impl Fn(u8) -> usize,
) -> Result<Scan, ParseError> {
    let mut end = 0;
    while let Some(&byte) = bytes.get(end) {
        end = bytes.len().min(end + step(byte));
        match scanner.scan(&bytes[..end], &LIMITS) {
            Ok(Scan::Partial) => {}
            outcome => return outcome,
        }
    }
    scanner.scan(bytes, &LIMITS)
}
