//! How connections end: a drain, a reload, inactivity, a client that speaks another protocol.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use super::client::{answer, get, talk, to};
use super::frames::{GOAWAY, PING, PROTOCOL_ERROR, Raw, SETTINGS};
use super::setup;
use crate::support::{Origin, PATIENCE, ok, poll, until};

#[test]
fn a_drain_lets_streams_finish() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::playing(move |mut peer| {
        while peer.next().is_some() {
            wait.lock().unwrap().recv().unwrap();
            peer.send(ok("well"));
        }
    });
    let Some(mut proxy) = setup(&origin).start() else { return };
    talk(&proxy, async |sender| {
        let mut sender = sender.ready().await.unwrap();
        let (response, _) = sender.send_request(to("/").body(()).unwrap(), true).unwrap();
        until(|| !origin.requests().is_empty()).await;
        proxy.signal(Signal::SIGTERM);
        // It may not open new streams; open ones continue.
        while sender.clone().ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        go.send(()).unwrap();
        let answer = answer(response.await.unwrap()).await.unwrap();
        assert_eq!((answer.status(), &answer.body[..]), (200, &b"well"[..]));
    });
    assert!(proxy.wait().success());
}

#[test]
fn a_drain_closes_idle_connections() {
    let origin = Origin::saying("");
    let Some(mut proxy) = setup(&origin).start() else { return };
    let mut raw = Raw::connect(&proxy);
    raw.until(SETTINGS);
    proxy.signal(Signal::SIGTERM);
    // A round trip in which requests in flight arrive; then the final GOAWAY.
    assert_eq!(raw.until(GOAWAY).error(), 0);
    let ping = raw.until(PING);
    raw.send(PING, 1, 0, &ping.payload);
    assert_eq!(raw.end(), 0);
    assert!(proxy.wait().success());
}

#[test]
fn an_idle_connection_is_closed_with_goaway() {
    let origin = Origin::saying("");
    let limits = json!({"keep_alive_timeout_ms": 1000, "half_close_timeout_ms": 100});
    let Some(proxy) = setup(&origin).with("limits", limits).start() else { return };
    let mut raw = Raw::connect(&proxy);
    // Even if the client does not respond.
    assert_eq!(raw.until(GOAWAY).error(), 0);
    assert_eq!(raw.end(), 0);
}

#[test]
fn requests_per_connection_are_limited() {
    let origin = Origin::saying("");
    let limits = json!({"requests_per_connection_max": 2});
    let Some(proxy) = setup(&origin).with("limits", limits).start() else { return };
    talk(&proxy, async |sender| {
        assert_eq!(get(&sender, "/1").await.status(), 200);
        assert_eq!(get(&sender, "/2").await.status(), 200);
        while sender.clone().ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

#[test]
fn invalid_frames_end_the_connection() {
    let origin = Origin::saying("");
    let Some(proxy) = setup(&origin).start() else { return };
    let mut raw = Raw::connect(&proxy);
    // A PING has no stream.
    raw.send(PING, 0, 3, &[0; 8]);
    assert_eq!(raw.end(), PROTOCOL_ERROR);
    assert_eq!(proxy.metric("sluice_http2_protocol_errors_total"), 1.0);
}

#[test]
fn unknown_protocols_get_no_response() {
    let origin = Origin::saying("");
    let Some(proxy) = setup(&origin).start() else { return };
    let mut wire = proxy.connect();
    wire.send("INVALID CONNECTION PREFACE\r\n\r\n");
    wire.expect_end();
    // Data that begins like HTTP/1.1 gets an HTTP/1.1 response.
    assert_eq!(proxy.ask("GET  / HTTP/1.1\r\n\r\n").status(), 400);
    assert_eq!(proxy.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").status(), 200);
}

#[test]
fn without_prior_knowledge_the_preface_is_refused() {
    let origin = Origin::saying("");
    for mode in ["auto", "off"] {
        let Some(proxy) = setup(&origin).with("listeners.0.http2", mode).start() else { return };
        let answer = proxy.ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        assert!(matches!(answer.status(), 400 | 505), "{answer:?}");
    }
}

/// A client that disappears ends its exchanges.
#[test]
fn a_connection_that_breaks_ends_its_exchanges() {
    let (gone, ended) = channel();
    let gone = Mutex::new(gone);
    let origin = Origin::playing(move |mut peer| {
        peer.next();
        gone.lock().unwrap().send(peer.rest().0).unwrap();
    });
    let Some(proxy) = setup(&origin).start() else { return };
    let mut raw = Raw::connect(&proxy);
    raw.get(1, "/wait");
    poll("the request", || (!origin.requests().is_empty()).then_some(()));
    drop(raw);
    assert_eq!(ended.recv_timeout(PATIENCE).unwrap(), b"");
    assert_eq!(proxy.outcome("/wait"), (499, "client_gone".to_owned()));
}
