//! Limits of a client: at each limit, beyond it, and the counter.

use serde_json::json;

use super::client::{get, talk};
use super::frames::*;
use super::{abuses, setup};
use crate::support::{Origin, Proxy, Setup, ok};

fn limited(origin: &Origin, key: &str, value: u64) -> Setup {
    setup(origin).with("limits", json!({"http2": {key: value}}))
}

/// The connection is closed with an error and counted; other connections are not affected.
fn ended(proxy: &Proxy, raw: &mut Raw, reason: &str) {
    assert_eq!(raw.end(), ENHANCE_YOUR_CALM);
    assert_eq!(abuses(proxy, reason), 1.0, "{reason}");
    assert_eq!(talk(proxy, async |sender| get(&sender, "/").await).status(), 200);
}

/// An origin that responds to nothing but `/`.
fn mute() -> Origin {
    Origin::playing(|mut peer| {
        while let Ok(head) = peer.try_head() {
            match head.target() {
                "/" => peer.send(ok("")),
                _ => drop(peer.rest()),
            }
        }
    })
}

#[test]
fn immediate_resets_are_limited() {
    let origin = mute();
    let Some(proxy) = limited(&origin, "resets_max", 20).start() else { return };
    let mut raw = Raw::connect(&proxy);
    let reset = |raw: &mut Raw, number: u32| {
        raw.get(number * 2 + 1, "/slow");
        raw.send(RST_STREAM, 0, number * 2 + 1, &8_u32.to_be_bytes());
    };
    (0..20).for_each(|number| reset(&mut raw, number));
    raw.get(1001, "/");
    assert_eq!(raw.outcome().status(), 200);
    reset(&mut raw, 501);
    ended(&proxy, &mut raw, "resets");
}

/// All of them arrive before the first one is processed.
#[test]
fn resets_that_arrive_with_their_requests_are_limited() {
    let origin = mute();
    let Some(proxy) = setup(&origin).start() else { return };
    let mut raw = Raw::connect(&proxy);
    raw.until(SETTINGS);
    let each = (0..40).flat_map(|number| {
        let head = frame(HEADERS, END_STREAM | END_HEADERS, number * 2 + 1, &block(&request("GET", "/slow")));
        [head, frame(RST_STREAM, 0, number * 2 + 1, &8_u32.to_be_bytes())].concat()
    });
    // They arrive in one receive.
    let all: Vec<u8> = each.collect();
    raw.write(&all);
    ended(&proxy, &mut raw, "pending_resets");
    assert!(origin.connections() <= 1, "no request reached the origin for a reset stream");
}

#[test]
fn control_frames_are_limited() {
    let origin = Origin::saying("");
    let Some(proxy) = limited(&origin, "control_frames_max", 50).start() else { return };
    let floods: [(u8, u32, &[u8]); 4] =
        [(PING, 0, &[0; 8]), (SETTINGS, 0, &[]), (PRIORITY, 1, &[0; 5]), (WINDOW_UPDATE, 0, &[0, 0, 0, 1])];
    for (index, (kind, stream, payload)) in floods.into_iter().enumerate() {
        let mut raw = Raw::connect(&proxy);
        // Its own SETTINGS frame counts as one.
        (0..49).for_each(|_| raw.send(kind, 0, stream, payload));
        raw.get(3, "/");
        assert_eq!(raw.outcome().status(), 200);
        // Frames sent to it allow a few more.
        (0..50).for_each(|_| raw.send(kind, 0, stream, payload));
        assert_eq!(raw.end(), ENHANCE_YOUR_CALM, "{kind}");
        assert_eq!(abuses(&proxy, "control_frames"), index as f64 + 1.0);
    }
}

#[test]
fn continuation_frames_are_limited() {
    let origin = Origin::saying("");
    let Some(proxy) = setup(&origin).start() else { return };
    let mut raw = Raw::connect(&proxy);
    raw.send(HEADERS, END_STREAM, 1, &block(&request("GET", "/")));
    (0..50).for_each(|_| raw.send(CONTINUATION, 0, 1, &[]));
    ended(&proxy, &mut raw, "continuations");
}

#[test]
fn the_size_of_a_head_is_limited() {
    let origin = Origin::saying("");
    let Some(proxy) = setup(&origin).with("limits", json!({"head_bytes_max": 4096})).start() else { return };
    let mut raw = Raw::connect(&proxy);
    let long = vec![b'x'; 6000];
    raw.head(1, END_STREAM, &[&request("GET", "/")[..], &[("x", &long)]].concat());
    let frame = raw.outcome();
    assert_eq!((frame.stream, frame.status()), (1, 431));
    raw.get(3, "/");
    assert_eq!(raw.outcome().status(), 200, "the connection is kept");
    // One entry of the table, referenced again and again.
    let mut bomb = block(&request("GET", "/"));
    bomb.extend_from_slice(&[0x40, 1, b'x', 0x7f, 0x81, 0x1e]);
    bomb.extend_from_slice(&long[..3968]);
    bomb.extend(std::iter::repeat_n(0xbe, 10_000));
    raw.send(HEADERS, END_STREAM | END_HEADERS, 5, &bomb);
    ended(&proxy, &mut raw, "header_list");
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn empty_data_frames_are_limited() {
    let origin = mute();
    let Some(proxy) = setup(&origin).start() else { return };
    let mut raw = Raw::connect(&proxy);
    raw.head(1, 0, &request("POST", "/slow"));
    (0..200).for_each(|_| raw.send(DATA, 0, 1, &[]));
    ended(&proxy, &mut raw, "data_frames");
}

/// MadeYouReset (CVE-2025-8671): a window update of zero is an error of its stream (RFC 9113 section 6.9).
#[test]
fn client_faults_that_cause_resets_are_limited() {
    let origin = mute();
    let Some(proxy) = limited(&origin, "faults_max", 20).start() else { return };
    let mut raw = Raw::connect(&proxy);
    for number in 0..21 {
        raw.get(number * 2 + 1, "/slow");
        raw.send(WINDOW_UPDATE, 0, number * 2 + 1, &0x7fff_ffff_u32.to_be_bytes());
    }
    ended(&proxy, &mut raw, "faults");
}

#[test]
fn streams_beyond_the_announced_maximum_are_refused() {
    let origin = mute();
    let Some(proxy) = limited(&origin, "streams_max", 3).start() else { return };
    let mut raw = Raw::connect(&proxy);
    let settings = raw.until(SETTINGS);
    assert!(settings.payload.chunks(6).any(|setting| setting == [0, 3, 0, 0, 0, 3]), "{settings:?}");
    (0..4).for_each(|number| raw.get(number * 2 + 1, "/slow"));
    let refused = raw.outcome();
    assert_eq!((refused.stream, refused.kind, refused.error()), (7, RST_STREAM, 7));
}

#[test]
fn windows_and_frame_sizes_are_as_configured() {
    let origin = Origin::saying("");
    let own = json!({"http2": {
        "stream_window_bytes": 100_000, "connection_window_bytes": 200_000, "frame_bytes_max": 20_000,
    }});
    let Some(proxy) = setup(&origin).with("limits", own).start() else { return };
    let mut raw = Raw::connect(&proxy);
    let settings = raw.until(SETTINGS).payload;
    let setting = |key: u8| {
        let found = settings.chunks(6).find(|setting| setting[..2] == [0, key]).unwrap();
        u32::from_be_bytes(found[2..].try_into().unwrap())
    };
    assert_eq!((setting(4), setting(5), setting(8)), (100_000, 20_000, 1), "windows, frames, websockets");
    let update = raw.until(WINDOW_UPDATE);
    assert_eq!((update.stream, update.payload), (0, (200_000 - 65_535_u32).to_be_bytes().to_vec()));
    // The largest frame, and one that is larger.
    raw.head(1, 0, &request("POST", "/"));
    raw.send(DATA, END_STREAM, 1, &[0; 20_000]);
    assert_eq!(raw.outcome().status(), 200);
    raw.head(3, 0, &request("POST", "/"));
    raw.send(DATA, END_STREAM, 3, &[0; 20_001]);
    assert_eq!(raw.end(), FRAME_SIZE_ERROR);
}

/// A client that reads nothing of a response: its windows stay closed.
#[test]
fn a_window_that_stays_closed_is_a_stalled_client() {
    let origin = Origin::saying("hello");
    let setup = setup(&origin).with("clusters.default.body_idle_timeout_ms", 300);
    let Some(proxy) = setup.start() else { return };
    let mut raw = Raw::with_settings(&proxy, &[(4, 0)]);
    raw.get(1, "/");
    assert_eq!(raw.outcome().status(), 200);
    let reset = raw.outcome();
    assert_eq!((reset.stream, reset.kind), (1, RST_STREAM));
    assert_eq!(proxy.outcome("/"), (499, "client_stalled".to_owned()));
}

#[test]
fn a_window_that_opens_byte_by_byte_delivers_the_body() {
    let origin = Origin::saying("hello");
    let Some(proxy) = setup(&origin).start() else { return };
    let mut raw = Raw::with_settings(&proxy, &[(4, 1)]);
    raw.get(1, "/");
    assert_eq!(raw.outcome().status(), 200);
    let mut body = Vec::new();
    loop {
        let data = raw.until(DATA);
        assert!(data.payload.len() <= 1);
        body.extend_from_slice(&data.payload);
        if data.flags & END_STREAM != 0 {
            break;
        }
        raw.send(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes());
    }
    assert_eq!(body, b"hello");
}
