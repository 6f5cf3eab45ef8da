//! What clients may not send, and which code they get (RFC 9114 section 8.1, RFC 9204 section 6).

use quinn::Connection;

use super::raw::{DATA, GOAWAY, HEADERS, SETTINGS, closed, control, exchange, frame, head, section, uni};
use super::{Site, raw, start};
use crate::support::{Origin, Setup};

const STREAM_CREATION_ERROR: u64 = 0x103;
const CLOSED_CRITICAL_STREAM: u64 = 0x104;
const FRAME_UNEXPECTED: u64 = 0x105;
const FRAME_ERROR: u64 = 0x106;
const ID_ERROR: u64 = 0x108;
const SETTINGS_ERROR: u64 = 0x109;
const MISSING_SETTINGS: u64 = 0x10a;
const REQUEST_INCOMPLETE: u64 = 0x10d;
const MESSAGE_ERROR: u64 = 0x10e;
const DECOMPRESSION_FAILED: u64 = 0x200;
const ENCODER_STREAM_ERROR: u64 = 0x201;
const DECODER_STREAM_ERROR: u64 = 0x202;

fn site() -> Option<Site> {
    start(Setup::to_origin(&Origin::saying("hello")))
}

/// A connection whose settings were sent.
async fn ready(site: &Site) -> (quinn::Endpoint, Connection, quinn::SendStream) {
    let (endpoint, connection) = site.connect().await;
    let control = control(&connection, &frame(SETTINGS, &[])).await;
    (endpoint, connection, control)
}

#[test]
fn violations_on_request_streams_end_the_connection() {
    let Some(site) = site() else { return };
    let get = head("GET", "/", &[]);
    for (bytes, code) in [
        (frame(DATA, b"x"), FRAME_UNEXPECTED),
        (frame(SETTINGS, &[]), FRAME_UNEXPECTED),
        ([get.clone(), frame(GOAWAY, &[0])].concat(), FRAME_UNEXPECTED),
        ([get.clone(), frame(0xd, &[0])].concat(), FRAME_UNEXPECTED),
        ([get.clone(), frame(5, &[0, 0, 0])].concat(), FRAME_UNEXPECTED),
        ([get.clone(), frame(2, &[])].concat(), FRAME_UNEXPECTED),
        ([get.clone(), frame(HEADERS, &section(&[])), frame(DATA, b"x")].concat(), FRAME_UNEXPECTED),
        (vec![0x01, 0x40], FRAME_ERROR),
        (vec![0x01, 0x05, 0x00], FRAME_ERROR),
        ([get.clone(), vec![0x00, 0x05, 0x00]].concat(), FRAME_ERROR),
        (frame(HEADERS, &[0x02, 0x00, 0x80]), DECOMPRESSION_FAILED),
        (frame(HEADERS, &[0x00, 0x00, 0x80]), DECOMPRESSION_FAILED),
        (frame(HEADERS, &[0x00, 0x00, 0xff, 0xff, 0xff]), DECOMPRESSION_FAILED),
        (frame(HEADERS, &[]), DECOMPRESSION_FAILED),
    ] {
        let code_found = site.run(async || {
            let (_endpoint, connection, _control) = ready(&site).await;
            let (mut send, _receive) = connection.open_bi().await.unwrap();
            let _ = send.write_all(&bytes).await;
            let _ = send.finish();
            closed(&connection).await
        });
        assert_eq!(code_found, code, "{bytes:x?}");
    }
    assert_eq!(site.proxy.metric("sluice_http3_protocol_errors_total"), 14.0);
}

#[test]
fn violations_on_control_streams_end_the_connection() {
    let Some(site) = site() else { return };
    let settings = frame(SETTINGS, &[]);
    let after = |bytes: Vec<u8>| [settings.clone(), bytes].concat();
    for (kind, bytes, code) in [
        (0, frame(DATA, b"x"), MISSING_SETTINGS),
        (0, frame(0x21, b"x"), MISSING_SETTINGS),
        (0, after(settings.clone()), FRAME_UNEXPECTED),
        (0, after(frame(DATA, b"x")), FRAME_UNEXPECTED),
        (0, after(frame(HEADERS, &section(&[]))), FRAME_UNEXPECTED),
        (0, after(frame(9, &[])), FRAME_UNEXPECTED),
        (0, after([frame(GOAWAY, &[4]), frame(GOAWAY, &[8])].concat()), ID_ERROR),
        (0, after([frame(0xd, &[4]), frame(0xd, &[2])].concat()), ID_ERROR),
        (0, after(frame(3, &[0])), ID_ERROR),
        (0, after(frame(0xf0700, &[2])), ID_ERROR),
        (0, after(frame(0xf0701, &[0])), ID_ERROR),
        (0, after(frame(GOAWAY, &[])), FRAME_ERROR),
        (0, frame(SETTINGS, &[6]), FRAME_ERROR),
        (0, frame(SETTINGS, &[2, 0]), SETTINGS_ERROR),
        (0, frame(SETTINGS, &[6, 0, 6, 0]), SETTINGS_ERROR),
        (1, vec![0], STREAM_CREATION_ERROR),
        (2, vec![0x3f, 0xe1, 0x1f], ENCODER_STREAM_ERROR),
        (3, vec![0x80], DECODER_STREAM_ERROR),
        (3, vec![0x01], DECODER_STREAM_ERROR),
    ] {
        let found = site.run(async || {
            let (_endpoint, connection) = site.connect().await;
            let _stream = uni(&connection, kind, &bytes).await;
            closed(&connection).await
        });
        assert_eq!(found, code, "{kind} {bytes:x?}");
    }
}

#[test]
fn critical_streams_are_opened_once_and_stay_open() {
    let Some(site) = site() else { return };
    for kind in [0, 2, 3] {
        let first = if kind == 0 { frame(SETTINGS, &[]) } else { Vec::new() };
        let twice = site.run(async || {
            let (_endpoint, connection) = site.connect().await;
            let _first = uni(&connection, kind, &first).await;
            let _second = uni(&connection, kind, &first).await;
            closed(&connection).await
        });
        assert_eq!(twice, STREAM_CREATION_ERROR, "{kind}");
        for is_reset in [false, true] {
            let ended = site.run(async || {
                let (_endpoint, connection) = site.connect().await;
                let mut stream = uni(&connection, kind, &first).await;
                // It must have been seen.
                assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
                match is_reset {
                    true => stream.reset(raw::code(0x100)).unwrap(),
                    false => stream.finish().unwrap(),
                }
                closed(&connection).await
            });
            assert_eq!(ended, CLOSED_CRITICAL_STREAM, "{kind} {is_reset}");
        }
    }
}

#[test]
fn malformed_requests_are_reset_and_others_go_on() {
    let Some(site) = site() else { return };
    let start = [(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/")];
    let with = |more: &[(&'static str, &'static str)]| frame(HEADERS, &section(&[&start[..], more].concat()));
    let post = |length| head("POST", "/", &[("content-length", length)]);
    let cases = [
        (Vec::new(), REQUEST_INCOMPLETE),
        (frame(0x21, b"grease"), REQUEST_INCOMPLETE),
        (with(&[("Upper", "x")]), MESSAGE_ERROR),
        (with(&[(":status", "200")]), MESSAGE_ERROR),
        (with(&[(":path", "/")]), MESSAGE_ERROR),
        (with(&[("x", "y"), (":method", "GET")]), MESSAGE_ERROR),
        (frame(HEADERS, &section(&start[1..])), MESSAGE_ERROR),
        (frame(HEADERS, &section(&start[..3])), MESSAGE_ERROR),
        (frame(HEADERS, &section(&[])), MESSAGE_ERROR),
        ([post("5"), frame(DATA, b"1234")].concat(), MESSAGE_ERROR),
        ([post("5"), frame(DATA, b"123456")].concat(), MESSAGE_ERROR),
        (post("5"), MESSAGE_ERROR),
        ([post("1"), frame(DATA, b"1"), frame(HEADERS, &section(&[(":x", "y")]))].concat(), MESSAGE_ERROR),
    ];
    site.run(async || {
        let (_endpoint, connection, _control) = ready(&site).await;
        for (bytes, code) in &cases {
            assert_eq!(exchange(&connection, bytes).await, Err(*code), "{bytes:x?}");
        }
        assert!(exchange(&connection, &head("GET", "/", &[])).await.unwrap().ends_with(b"hello"));
    });
    assert!(site.proxy.metric("sluice_http3_streams_malformed_total") >= 11.0);
}

#[test]
fn bad_requests_get_the_responses_of_other_versions() {
    let Some(site) = site() else { return };
    let long = "x".repeat(20_000);
    let huge = "x".repeat(100_000);
    for (fields, status) in [
        (vec![("connection", "close")], "400"),
        (vec![("transfer-encoding", "chunked")], "400"),
        (vec![("te", "gzip")], "400"),
        (vec![("host", "other.test")], "400"),
        (vec![("x", "a\nb")], "400"),
        (vec![("content-length", "1"), ("content-length", "2")], "400"),
        (vec![("x", &long), ("y", &long), ("z", &long), ("w", &long)], "431"),
        (vec![("x", &huge)], "431"),
    ] {
        let name = fields[0].0;
        let request = head("POST", &format!("/{name}/{}", fields.len()), &fields);
        let request = [request, frame(DATA, b"x")].concat();
        let received = site.run(async || {
            let (_endpoint, connection, _control) = ready(&site).await;
            exchange(&connection, &request).await.unwrap()
        });
        // A status of the static table, or a literal one.
        let is_400 = received[..8].windows(2).any(|pair| pair == [0xff, 67 - 63]);
        let shown = if is_400 { "400" } else { "431" };
        assert_eq!(shown, status, "{name} {:x?}", &received[..12]);
    }
}

#[test]
fn unknown_frames_streams_and_settings_are_ignored() {
    let Some(site) = site() else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let settings = frame(SETTINGS, &[0x21, 5, 0x40, 0x5f, 7]);
        let _control =
            control(&connection, &[settings, frame(0x5f, b"grease"), frame(0xf0700, b"\x00u=1")].concat())
                .await;
        let mut grease = uni(&connection, 0x21, b"anything").await;
        let request =
            [frame(0x21, b""), head("GET", "/", &[("priority", "u=0, i")]), frame(0x40, b"xyz")].concat();
        assert!(exchange(&connection, &request).await.unwrap().ends_with(b"hello"));
        assert_eq!(
            grease.stopped().await.unwrap().map(|code| code.into_inner()),
            Some(STREAM_CREATION_ERROR)
        );
        let _ = grease.finish();
    });
}
