//! How streams and connections end: cancelled requests, dead origins, silence, drains.

use std::time::Duration;

use bytes::Buf;
use nix::sys::signal::Signal;
use serde_json::json;

use super::client::{get, to};
use super::raw::{closed, control, exchange, frame, head};
use super::{raw, start, start_with};
use crate::support::{Origin, Setup, free_port, ok, pattern, poll, until};

#[test]
fn a_cancelled_request_reaches_the_origin() {
    let origin = Origin::playing(|mut peer| {
        let request = peer.head();
        if request.target().starts_with("/waits") {
            assert_eq!(peer.rest().0, b"", "the connection ends");
        } else {
            peer.send(ok("x"));
        }
    });
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        for (number, method) in (1..).zip(["GET", "POST"]) {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&head(method, &format!("/waits/{method}"), &[])).await.unwrap();
            match method {
                "GET" => send.finish().unwrap(),
                _ => tokio::task::yield_now().await,
            }
            until(|| origin.connections() == number).await;
            let _ = send.reset(raw::code(0x10c));
            receive.stop(raw::code(0x10c)).unwrap();
        }
        // Others go on.
        assert!(exchange(&connection, &head("GET", "/", &[])).await.unwrap().ends_with(b"x"));
    });
    assert_eq!(site.proxy.outcome("/waits/GET"), (499, "client_gone".to_owned()));
    assert_eq!(site.proxy.outcome("/waits/POST"), (400, "body_incomplete".to_owned()));
}

#[test]
fn a_truncated_response_is_reset() {
    let origin = Origin::playing(|mut peer| {
        peer.next().unwrap();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    });
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    let code = site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        exchange(&connection, &head("GET", "/", &[])).await
    });
    assert!(matches!(code, Err(0x102 | 0x10c)), "{code:?}");
}

#[test]
fn silence_ends_a_connection_in_order() {
    let origin = Origin::saying("x");
    let limits = json!({"limits": {"keep_alive_timeout_ms": 200, "half_close_timeout_ms": 50}});
    let Some(site) = start_with(Setup::to_origin(&origin), limits) else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
        let mut server = connection.accept_uni().await.unwrap();
        assert_eq!(closed(&connection).await, 0x100);
        let mut said = Vec::new();
        while let Ok(Some(chunk)) = server.read_chunk(1000, true).await {
            said.extend_from_slice(&chunk.bytes);
        }
        assert_eq!(said[..2], [0, 4], "control stream, settings");
    });
}

#[test]
fn a_drain_lets_streams_finish() {
    let body = pattern(2_000_000);
    let sent = body.clone();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let origin = Origin::playing(move |mut peer| {
        while peer.next().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len()));
            gone.lock().unwrap().recv().unwrap();
            peer.send(sent.clone());
        }
    });
    let Some(mut site) = start(Setup::to_origin(&origin)) else { return };
    let received = site.talk(async |sender| {
        let mut stream = sender.clone().send_request(to("/").body(()).unwrap()).await.unwrap();
        stream.finish().await.unwrap();
        stream.recv_response().await.unwrap();
        site.proxy.signal(Signal::SIGTERM);
        site.proxy.wait_for("draining");
        go.send(()).unwrap();
        let mut body = Vec::new();
        while let Some(mut data) = stream.recv_data().await.unwrap() {
            body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        body
    });
    crate::support::assert_same(&received, &body);
    assert!(site.proxy.wait().success());
}

/// The kernel ends connections of TCP with the process; those of QUIC would be silent until a timeout.
#[test]
fn clients_are_told_when_a_drain_times_out() {
    let origin = Origin::playing(|mut peer| {
        peer.next().unwrap();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
        peer.rest();
    });
    for (second, reloaded) in [(false, false), (true, false), (false, true)] {
        let timeout_ms = if second { 600_000 } else { 50 };
        let Some(mut site) = start(Setup::to_origin(&origin).with("drain_timeout_ms", timeout_ms)) else {
            return;
        };
        let code = site.run(async || {
            let (_endpoint, connection) = site.connect().await;
            let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(&head("GET", "/", &[])).await.unwrap();
            send.finish().unwrap();
            receive.read_chunk(100, true).await.unwrap();
            if reloaded {
                let mut config = site.proxy.config.clone();
                config["listeners"][0]["http3"] = json!("off");
                assert_eq!(site.proxy.reload(&config).0, Some(0));
            }
            site.proxy.signal(Signal::SIGTERM);
            if second {
                site.proxy.wait_for("draining");
                site.proxy.signal(Signal::SIGTERM);
            }
            closed(&connection).await
        });
        assert_eq!(code, 0x100);
        assert_eq!(site.proxy.wait().code(), Some(i32::from(second)));
    }
}

#[test]
fn a_late_head_is_reset() {
    let limits = json!({"limits": {"header_timeout_ms": 100}});
    let Some(site) = start_with(Setup::to_origin(&Origin::saying("x")), limits) else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        let (mut send, receive) = connection.open_bi().await.unwrap();
        send.write_all(&[1]).await.unwrap();
        assert_eq!(raw::rest(receive).await, Err(0x10d));
    });
}

#[test]
fn a_client_that_reads_nothing_is_given_up() {
    let body = pattern(4_000_000);
    let origin = Origin::answering(move |_| {
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(), body.clone()]
            .concat()
    });
    let setup = Setup::to_origin(&origin).with("clusters.default.body_idle_timeout_ms", 300);
    let Some(site) = start(setup) else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&head("GET", "/slow", &[])).await.unwrap();
        send.finish().unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let lost = receive.received_reset().await.unwrap();
        assert!(lost.is_some());
        assert!(exchange(&connection, &head("HEAD", "/", &[])).await.is_ok(), "others go on");
    });
}

#[test]
fn workers_serve_their_connections() {
    let origin = Origin::saying("x");
    let Some(site) = start(Setup::to_origin(&origin).with("workers", 3)) else { return };
    for _ in 0..12 {
        site.talk(async |sender| {
            for _ in 0..3 {
                assert_eq!(get(&sender, "/").await.status(), 200);
            }
        });
    }
    assert_eq!(site.proxy.metric("sluice_http3_connections_total"), 12.0);
}

#[test]
fn a_client_that_moves_keeps_its_connection() {
    let origin = Origin::saying("x");
    let Some(site) = start(Setup::to_origin(&origin).with("workers", 3)) else { return };
    site.run(async || {
        let (endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        for _ in 0..8 {
            assert!(exchange(&connection, &head("GET", "/", &[])).await.unwrap().ends_with(b"x"));
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            endpoint.rebind(socket).unwrap();
        }
        assert!(exchange(&connection, &head("GET", "/last", &[])).await.unwrap().ends_with(b"x"));
    });
    assert_eq!(site.proxy.metric("sluice_http3_connections_total"), 1.0);
}

#[test]
fn applications_learn_the_address_that_a_client_has_moved_to() {
    let origin = Origin::saying("x");
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    let address = || origin.last().get("x-forwarded-for").map(str::to_owned);
    site.run(async || {
        let (endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
        assert_eq!(address().as_deref(), Some("127.0.0.1"));
        for moved in ["127.0.0.3", "127.0.0.4"] {
            endpoint.rebind(std::net::UdpSocket::bind((moved, 0)).unwrap()).unwrap();
            while address().as_deref() != Some(moved) {
                assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
            }
        }
    });
}

#[test]
fn a_client_that_leaves_is_let_go() {
    let Some(site) = start(Setup::to_origin(&Origin::saying("x"))) else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let mut control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        let (mut send, receive) = connection.open_bi().await.unwrap();
        control.write_all(&frame(raw::GOAWAY, &[0])).await.unwrap();
        send.write_all(&head("GET", "/", &[])).await.unwrap();
        send.finish().unwrap();
        assert!(raw::rest(receive).await.unwrap().ends_with(b"x"), "what is open is served");
        assert_eq!(closed(&connection).await, 0x100);
    });
    poll("the end", || (site.proxy.metric("sluice_http3_connections_ended_total") == 1.0).then_some(()));
    assert!(site.proxy.metric("sluice_http3_rtt_seconds_total") > 0.0);
}

#[test]
fn clients_of_a_process_that_is_gone_learn_it_at_once() {
    let origin = Origin::saying("x");
    let secret = std::env::temp_dir().join(format!("sluice-it-{}-quic-secret", std::process::id()));
    let address = json!({"address": format!("127.0.0.1:{}", free_port())});
    // The first one makes it.
    let setup = || Setup::to_origin(&origin).with("http3_secret_file", secret.to_str().unwrap());
    let Some(mut site) = start_with(setup(), address.clone()) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (_endpoint, connection, _control) = runtime.block_on(async {
        let (endpoint, connection) = site.connect().await;
        let control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        exchange(&connection, &head("GET", "/", &[])).await.unwrap();
        (endpoint, connection, control)
    });
    site.proxy.signal(Signal::SIGKILL);
    site.proxy.wait();
    let next = start_with(setup(), address).unwrap();
    next.run(async || {
        let (_endpoint, connection) = next.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        exchange(&connection, &head("GET", "/", &[])).await.unwrap();
    });
    let ended = runtime.block_on(async {
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        let _ = send.write_all(&head("GET", "/", &[])).await;
        connection.closed().await
    });
    assert!(matches!(ended, quinn::ConnectionError::Reset), "{ended:?}");
    std::fs::remove_file(&secret).unwrap();
}
