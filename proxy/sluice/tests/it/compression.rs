//! Responses of applications, encoded for clients that take it.

use std::io::Read;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use serde_json::{Value, json};

use crate::support::{Message, Origin, Proxy, Setup, assert_same};

const CODINGS: [&str; 3] = ["gzip", "zstd", "br"];

fn get(proxy: &Proxy, target: &str, fields: &str) -> Message {
    proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"))
}

fn serve(origin: &Origin, compress: Value) -> Option<Proxy> {
    // However long a debug build takes.
    let setup = Setup::to_origin(origin).with("compression", json!({"cpu_percent_max": 100}));
    setup.with("routes", json!([{"cluster": "default", "compress": compress}])).start()
}

/// Text that shrinks, with something new in every line.
fn text(length: usize) -> Vec<u8> {
    let lines =
        (0_u64..).flat_map(|at| format!("line {at} of {}\n", at.wrapping_mul(2_654_435_761)).into_bytes());
    lines.take(length).collect()
}

pub(crate) fn decoded(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "gzip" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).map(drop),
        "zstd" => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut out).map(drop),
        "br" => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out).map(drop),
        other => panic!("{other}"),
    }
    .unwrap_or_else(|error| panic!("{coding}: {error}"));
    out
}

fn html(body: &[u8], fields: &str) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{fields}Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

#[test]
fn each_coding_and_level_gives_the_body_back() {
    let origin = Origin::answering(|request| {
        let length = request.target().trim_start_matches('/').parse().unwrap();
        let body = text(length);
        if request.get("x-how") == Some("chunks") {
            let mut out =
                b"HTTP/1.1 200 OK\r\nContent-Type: text/css\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            for piece in body.chunks(3001) {
                out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\n\r\n");
            return out;
        }
        html(&body, "")
    });
    for level in ["fast", "balanced", "best"] {
        let Some(proxy) = serve(&origin, json!({"level": level})) else { return };
        let mut wire = proxy.connect();
        for coding in CODINGS {
            for length in [1024, 1025, 20_000, 1_000_000] {
                for how in ["length", "chunks"] {
                    let fields = format!("Accept-Encoding: {coding}\r\nX-How: {how}\r\n");
                    let answer = wire.ask(format!("GET /{length} HTTP/1.1\r\nHost: a\r\n{fields}\r\n"));
                    assert_eq!(answer.get("content-encoding"), Some(coding));
                    assert_eq!(
                        (answer.get("vary"), answer.get("content-length")),
                        (Some("Accept-Encoding"), None)
                    );
                    assert!(answer.body.len() < length * 2 / 3, "{coding} {length} {}", answer.body.len());
                    assert_same(&decoded(coding, &answer.body), &text(length));
                }
            }
        }
        let bytes = proxy.record("/1000000")["bytes_out"].as_u64().unwrap();
        assert!(bytes < 700_000, "{bytes}");
    }
}

#[test]
fn what_does_not_shrink_or_must_not_change_is_sent_as_it_is() {
    let body = text(5000);
    let sent = body.clone();
    let origin = Origin::answering(move |request| {
        let fields = match request.target() {
            "/small" => return html(&sent[..100], ""),
            "/png" => {
                return [
                    &b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 5000\r\n\r\n"[..],
                    &sent,
                ]
                .concat();
            }
            "/part" => {
                let head = "HTTP/1.1 206 Partial Content\r\nContent-Type: text/html\r\nContent-Range: bytes 0-4999/9000\r\nContent-Length: 5000\r\n\r\n";
                return [head.as_bytes(), &sent].concat();
            }
            "/304" => return b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n".to_vec(),
            "/encoded" => "Content-Encoding: x\r\n",
            "/no-transform" => "Cache-Control: no-transform\r\n",
            "/vary" => "Vary: Origin, Accept-Encoding\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\n",
            _ => "ETag: \"a\"\r\n",
        };
        html(&sent, fields)
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    // A part has the Vary of the whole.
    let part = get(&proxy, "/part", "Accept-Encoding: gzip\r\n");
    assert_eq!((part.get("vary"), part.get("content-encoding")), (Some("Accept-Encoding"), None));
    assert_same(&part.body, &body);
    for target in ["/small", "/png", "/encoded", "/no-transform"] {
        let answer = get(&proxy, target, "Accept-Encoding: gzip\r\n");
        assert_eq!(answer.get("vary"), None, "{target}");
        assert!(answer.get("content-length").is_some() && body.starts_with(&answer.body), "{target}");
    }
    for fields in
        ["", "Accept-Encoding: identity\r\n", "Accept-Encoding: gzip\r\nAuthorization: Basic YTpi\r\n"]
    {
        let answer = get(&proxy, "/", fields);
        assert_same(&answer.body, &body);
        assert_eq!(
            (answer.get("vary"), answer.get("etag")),
            (Some("Accept-Encoding"), Some("\"a\"")),
            "{fields}"
        );
    }
    let answer = get(&proxy, "/304", "Accept-Encoding: gzip\r\nIf-None-Match: W/\"a\"\r\n");
    assert_eq!(
        (answer.status(), answer.get("vary"), answer.get("content-encoding")),
        (304, Some("Accept-Encoding"), None)
    );
    let answer = get(&proxy, "/vary", "Accept-Encoding: gzip\r\n");
    assert_eq!((answer.get("vary"), answer.get("etag")), (Some("Origin, Accept-Encoding"), Some("W/\"a\"")));
    assert_eq!(answer.get("accept-ranges"), None);
    // HTTP/1.0 has no chunks, and the length is not known.
    let mut wire = proxy.connect();
    wire.send("GET / HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    let (bytes, _) = wire.rest();
    assert!(bytes.ends_with(&body));
}

#[test]
fn a_response_to_head_has_the_fields_of_get_and_nothing_follows() {
    let body = text(5000);
    let origin = Origin::answering(move |request| {
        let response = html(&body, "");
        match request.line.starts_with("HEAD") {
            true => response[..response.len() - body.len()].to_vec(),
            false => response,
        }
    });
    let Some(proxy) = serve(&origin, json!({"algorithms": ["gzip"]})) else { return };
    let mut wire = proxy.connect();
    for _ in 0..2 {
        wire.send("HEAD / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
        let head = wire.head();
        assert_eq!((head.status(), head.get("content-encoding")), (200, Some("gzip")));
        assert_eq!((head.get("content-length"), head.get("vary")), (None, Some("Accept-Encoding")));
        let answer = wire.ask("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
        assert_same(&decoded("gzip", &answer.body), &text(5000));
    }
}

#[test]
fn events_arrive_one_by_one() {
    let (seen, see) = channel();
    let see = Mutex::new(see);
    let origin = Origin::playing(move |mut peer| {
        let Some(_) = peer.next() else { return };
        let mut wire = peer.into_wire();
        wire.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        for at in 0..5 {
            let event = format!("data: {at}\n\n");
            wire.send(format!("{:x}\r\n{event}\r\n", event.len()));
            // The next one is sent when the client has seen this one.
            see.lock().unwrap().recv().unwrap();
        }
        wire.send("0\r\n\r\n");
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    for coding in CODINGS {
        let mut wire = proxy.connect();
        wire.send(format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n"));
        let mut answer = wire.head();
        assert_eq!(answer.get("content-encoding"), Some(coding));
        let mut encoded = Vec::new();
        for at in 0..5 {
            let wanted = format!("data: {at}\n\n").into_bytes();
            while !so_far(coding, &encoded).ends_with(&wanted) {
                encoded.extend(wire.chunk(&mut answer).expect("the stream goes on"));
            }
            seen.send(()).unwrap();
        }
        while let Some(chunk) = wire.chunk(&mut answer) {
            encoded.extend(chunk);
        }
        assert_eq!(decoded(coding, &encoded).len(), 5 * "data: 0\n\n".len());
    }
}

/// What a decoder has of an unfinished stream.
fn so_far(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let _ = match coding {
        "gzip" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).map(drop),
        "zstd" => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut out).map(drop),
        _ => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out).map(drop),
    };
    out
}

#[test]
fn a_body_that_breaks_off_is_not_ended() {
    let body = text(500_000);
    let origin = Origin::playing(move |mut peer| {
        if peer.next().is_some() {
            let mut wire = peer.into_wire();
            wire.send(&html(&body, "")[..200_000]);
        }
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    for coding in CODINGS {
        let mut wire = proxy.connect();
        wire.send(format!("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n"));
        assert_eq!(wire.head().status(), 200);
        let (bytes, _) = wire.rest();
        assert!(!bytes.ends_with(b"0\r\n\r\n"), "{coding}");
    }
}

#[test]
fn memory_for_encoding_is_bounded_and_what_exceeds_it_is_sent_plain() {
    let origin = Origin::playing(|mut peer| {
        let Some(_) = peer.next() else { return };
        let mut wire = peer.into_wire();
        wire.send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        );
        // Until the client goes away.
        wire.rest();
    });
    let routes = json!([{"cluster": "default", "compress": {}}]);
    let setup = Setup::to_origin(&origin)
        .with("routes", routes)
        .with("compression", json!({"memory_max": "1m", "cpu_percent_max": 100}));
    let Some(proxy) = setup.start() else { return };
    let open = || {
        let mut wire = proxy.connect();
        wire.send("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
        let coding = wire.head().get("content-encoding").map(str::to_owned);
        (wire, coding)
    };
    let streams: Vec<_> = (0..4).map(|_| open()).collect();
    let encoded = streams.iter().filter(|(_, coding)| coding.is_some()).count();
    assert_eq!(encoded, 2);
    assert_eq!(proxy.metric("sluice_compression_refused_total{reason=\"memory\"}"), 2.0);
    assert_eq!(proxy.metric("sluice_compressed_responses_total{coding=\"gzip\"}"), 2.0);
    drop(streams);
    crate::support::poll("memory is free again", || open().1.map(drop));
}

#[test]
fn responses_to_requests_with_cookies_have_a_length_of_their_own() {
    let body = text(5000);
    let origin = Origin::answering(move |_| html(&body, ""));
    let Some(proxy) = serve(&origin, json!({"algorithms": ["gzip"]})) else { return };
    let paddings: Vec<usize> = (0..20)
        .map(|_| {
            let answer = get(&proxy, "/", "Accept-Encoding: gzip\r\nCookie: a=b\r\n");
            answer.get("x-sluice-padding").unwrap().len()
        })
        .collect();
    assert!(paddings.iter().any(|length| *length != paddings[0]), "{paddings:?}");
    assert_eq!(get(&proxy, "/", "Accept-Encoding: gzip\r\n").get("x-sluice-padding"), None);
}

#[test]
fn encoding_gives_way_when_it_takes_more_time_than_it_may() {
    let body = text(300_000);
    let origin = Origin::answering(move |_| html(&body, ""));
    let routes = json!([{"cluster": "default", "compress": {"level": "best"}}]);
    let limit = json!({"cpu_percent_max": 1});
    let Some(proxy) = Setup::to_origin(&origin).with("routes", routes).with("compression", limit).start()
    else {
        return;
    };
    let mut wire = proxy.connect();
    crate::support::poll("responses are plain", || {
        let answer = wire.ask("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: br\r\n\r\n");
        match answer.get("content-encoding") {
            Some(coding) => assert_same(&decoded(coding, &answer.body), &text(300_000)),
            None => assert_same(&answer.body, &text(300_000)),
        }
        answer.get("content-encoding").is_none().then_some(())
    });
    assert!(proxy.metric("sluice_compression_refused_total{reason=\"busy\"}") >= 1.0);
    drop(wire);
    crate::support::poll("there is time again", || {
        let answer = get(&proxy, "/", "Accept-Encoding: gzip\r\n");
        answer.get("content-encoding").map(drop)
    });
}
