//! Stored responses that are encoded once, for all clients that take the same coding.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use serde_json::{Value, json};

use super::{caching, get, is_hit, response};
use crate::compression::decoded;
use crate::support::{Origin, Proxy, assert_same};

const CODINGS: [&str; 3] = ["gzip", "zstd", "br"];

fn page(version: u32) -> Vec<u8> {
    let lines = (0..2_000).map(|at: u32| format!("<p>version {version}, line {at}\n"));
    lines.collect::<String>().into_bytes()
}

/// Changes with each request that comes without a validator, and is still right otherwise.
fn origin(control: &'static str) -> (Origin, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asked);
    let origin = Origin::answering(move |request| {
        if request.get("if-none-match").is_some() {
            return b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n".to_vec();
        }
        let version = counter.fetch_add(1, SeqCst) + 1;
        response(
            &format!("Content-Type: text/html\r\nCache-Control: {control}\r\nETag: \"a\"\r\n"),
            page(version),
        )
    });
    (origin, asked)
}

fn serve(origin: &Origin, cache: Value) -> Option<Proxy> {
    let setup = caching(origin, cache).with("compression", json!({"cpu_percent_max": 100}));
    setup.with("routes", json!([{"cluster": "default", "cache": "pages", "compress": {}}])).start()
}

#[test]
fn each_coding_is_kept_beside_the_response() {
    let (origin, asked) = origin("max-age=60");
    let Some(proxy) = serve(&origin, json!({})) else { return };
    assert!(!is_hit(&get(&proxy, "/", "Accept-Encoding: gzip\r\n")));
    for coding in CODINGS {
        let fields = format!("Accept-Encoding: {coding}\r\n");
        for _ in 0..3 {
            let answer = get(&proxy, "/", &fields);
            assert!(is_hit(&answer) && answer.get("content-length").is_some(), "{coding}");
            assert_eq!(answer.get("content-encoding"), Some(coding));
            assert_eq!((answer.get("vary"), answer.get("etag")), (Some("Accept-Encoding"), Some("W/\"a\"")));
            assert_same(&decoded(coding, &answer.body), &page(1));
        }
        let head = proxy.ask(format!("HEAD / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n{fields}\r\n"));
        assert_eq!((head.get("content-encoding"), head.get("content-length")), (Some(coding), None));
        let part = get(&proxy, "/", &format!("{fields}Range: bytes=3-9\r\n"));
        assert_eq!(
            (part.status(), part.get("content-encoding"), &part.body[..]),
            (206, None, &b"version"[..])
        );
        assert_eq!(part.get("vary"), Some("Accept-Encoding"));
        let same = get(&proxy, "/", &format!("{fields}If-None-Match: W/\"a\"\r\n"));
        assert_eq!(
            (same.status(), same.get("content-encoding"), same.get("etag")),
            (304, None, Some("W/\"a\""))
        );
    }
    assert_same(&get(&proxy, "/", "").body, &page(1));
    assert_eq!(asked.load(SeqCst), 1);
    assert_eq!(proxy.command("cache", &["purge", "--all"]).0, Some(0));
    for _ in 0..2 {
        let answer = get(&proxy, "/", "Accept-Encoding: zstd\r\n");
        assert_same(&decoded("zstd", &answer.body), &page(2));
    }
}

#[test]
fn a_validated_response_is_not_encoded_again() {
    let (origin, asked) = origin("no-cache");
    let Some(proxy) = serve(&origin, json!({})) else { return };
    get(&proxy, "/", "Accept-Encoding: br\r\n");
    for _ in 0..3 {
        let answer = get(&proxy, "/", "Accept-Encoding: br\r\n");
        assert!(answer.get("content-length").is_some());
        assert_same(&decoded("br", &answer.body), &page(1));
    }
    assert_eq!(asked.load(SeqCst), 1);
}

#[test]
fn without_room_each_response_is_encoded_as_it_is_sent() {
    let (origin, _) = origin("max-age=60");
    let Some(proxy) = serve(&origin, json!({"encoded_max": 0})) else { return };
    for hit in [false, true, true] {
        let answer = get(&proxy, "/", "Accept-Encoding: gzip\r\n");
        assert_eq!((is_hit(&answer), answer.get("content-length")), (hit, None));
        assert_same(&decoded("gzip", &answer.body), &page(1));
    }
}

#[test]
fn a_date_does_not_tell_which_coding_a_client_has_a_part_of() {
    const DATE: &str = "Sat, 01 Nov 2025 00:00:00 GMT";
    let origin = Origin::answering(|_| {
        let fields = "Content-Type: text/html\r\nCache-Control: max-age=60\r\nLast-Modified: ";
        response(&format!("{fields}{DATE}\r\n"), page(1))
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    get(&proxy, "/", "");
    let fields = format!("Accept-Encoding: gzip\r\nRange: bytes=5-\r\nIf-Range: {DATE}\r\n");
    for _ in 0..3 {
        let answer = get(&proxy, "/", &fields);
        assert_eq!((answer.status(), answer.get("content-encoding")), (200, Some("gzip")));
        assert_same(&decoded("gzip", &answer.body), &page(1));
    }
    assert_eq!(get(&proxy, "/", "Range: bytes=5-\r\n").status(), 206);
}
