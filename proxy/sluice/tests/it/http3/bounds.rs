//! What a client may take: connections, handshakes, requests that it cancels, frames that do nothing.

use std::net::UdpSocket;

use serde_json::json;

use super::raw::{closed, control, exchange, frame, head};
use super::{raw, start, start_with};
use crate::support::{Origin, Setup, until};

const EXCESSIVE_LOAD: u64 = 0x107;

#[test]
fn rapid_resets_end_the_connection() {
    let limits = json!({"limits": {"http3": {"resets_max": 20}}});
    let origin = Origin::playing(|mut peer| while peer.next().is_some() {});
    let Some(site) = start_with(Setup::to_origin(&origin), limits) else { return };
    let code = site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        loop {
            let Ok((mut send, mut receive)) = connection.open_bi().await else { break };
            let _ = send.write_all(&head("POST", "/", &[])).await;
            tokio::task::yield_now().await;
            let _ = send.reset(raw::code(0x10c));
            let _ = receive.stop(raw::code(0x10c));
        }
        closed(&connection).await
    });
    assert_eq!(code, EXCESSIVE_LOAD);
    assert_eq!(site.proxy.metric("sluice_http3_abuses_total{reason=\"resets\"}"), 1.0);
}

#[test]
fn frames_that_do_nothing_end_the_connection() {
    let limits = json!({"limits": {"http3": {"control_frames_max": 50}}});
    let Some(site) = start_with(Setup::to_origin(&Origin::saying("x")), limits) else { return };
    let empty = frame(0x21, &[]);
    for on_control in [true, false] {
        let code = site.run(async || {
            let (_endpoint, connection) = site.connect().await;
            let settings = frame(raw::SETTINGS, &[]);
            let many = empty.repeat(60);
            let many = if on_control { [settings, many.clone()].concat() } else { settings };
            let _control = control(&connection, &many).await;
            if !on_control {
                let (mut send, _receive) = connection.open_bi().await.unwrap();
                let _ = send.write_all(&empty.repeat(60)).await;
                return closed(&connection).await;
            }
            closed(&connection).await
        });
        assert_eq!(code, EXCESSIVE_LOAD, "{on_control}");
    }
    assert_eq!(site.proxy.metric("sluice_http3_abuses_total{reason=\"control_frames\"}"), 2.0);
}

#[test]
fn faults_end_the_connection() {
    let limits = json!({"limits": {"http3": {"faults_max": 10}}});
    let Some(site) = start_with(Setup::to_origin(&Origin::saying("x")), limits) else { return };
    let code = site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        while let Ok((mut send, _receive)) = connection.open_bi().await {
            let _ = send.finish();
        }
        closed(&connection).await
    });
    assert_eq!(code, EXCESSIVE_LOAD);
    assert_eq!(site.proxy.metric("sluice_http3_abuses_total{reason=\"faults\"}"), 1.0);
}

#[test]
fn no_more_streams_are_open_than_allowed() {
    let limits = json!({"limits": {"http3": {"streams_max": 3}}});
    let origin = Origin::playing(|mut peer| while peer.next().is_some() {});
    let Some(site) = start_with(Setup::to_origin(&origin), limits) else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        let mut open = Vec::new();
        for _ in 0..3 {
            let mut stream = connection.open_bi().await.unwrap();
            stream.0.write_all(&head("POST", "/", &[])).await.unwrap();
            open.push(stream);
        }
        until(|| origin.connections() == 3).await;
        let fourth = std::future::poll_fn(|cx| {
            use std::future::Future;
            let mut opening = std::pin::pin!(connection.open_bi());
            std::task::Poll::Ready(opening.as_mut().poll(cx).is_pending())
        });
        assert!(fourth.await);
        open.remove(0).0.reset(raw::code(0x10c)).unwrap();
        assert!(connection.open_bi().await.is_ok());
    });
}

#[test]
fn clients_prove_their_address_when_many_shake_hands() {
    let limits = json!({"limits": {"http3": {"validate_above": 0}}});
    let Some(site) = start_with(Setup::to_origin(&Origin::saying("x")), limits) else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
    });
    // Once for each packet of the first flight.
    assert!(site.proxy.metric("sluice_http3_retries_total") >= 1.0);
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let limits = json!({"limits": {"connections_max": 1}});
    let Some(site) = start_with(Setup::to_origin(&Origin::saying("x")), limits) else { return };
    site.run(async || {
        let (endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
        let second = endpoint.connect_with(site.client(), site.proxy.address_of("main"), "a.test").unwrap();
        let error = second.await.unwrap_err();
        assert!(matches!(&error, quinn::ConnectionError::ConnectionClosed(close) if u64::from(close.error_code) == 2), "{error:?}");
    });
    assert!(site.proxy.metric("sluice_http3_refused_total") >= 1.0);
}

#[test]
fn garbage_gets_no_answer_and_harms_nobody() {
    let Some(site) = start(Setup::to_origin(&Origin::saying("x"))) else { return };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.connect(site.proxy.address_of("main")).unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    for length in (0..1500).step_by(7) {
        let mut bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
        for first in [0x00, 0x40, 0xc0] {
            if let Some(byte) = bytes.first_mut() {
                *byte = *byte & 0x3f | first;
            }
            let _ = socket.send(&bytes);
        }
    }
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
    });
    let mut answers = 0;
    while socket.recv(&mut [0; 1500]).is_ok() {
        answers += 1;
    }
    // Long headers of an unknown version may be answered with the known ones.
    assert!(answers <= 100, "{answers}");
}

#[test]
fn unknown_streams_are_bounded() {
    let limits = json!({"limits": {"http3": {"control_frames_max": 30}}});
    let Some(site) = start_with(Setup::to_origin(&Origin::saying("x")), limits) else { return };
    let code = site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        for _ in 0..100 {
            if connection.close_reason().is_some() {
                break;
            }
            let opening = tokio::time::timeout(std::time::Duration::from_secs(5), connection.open_uni());
            let Ok(Ok(mut stream)) = opening.await else { break };
            let _ = stream.write_all(&[0x40, 0x21]).await;
            let _ = stream.finish();
        }
        closed(&connection).await
    });
    assert_eq!(code, EXCESSIVE_LOAD);
}

#[test]
fn a_client_that_keeps_moving_is_closed() {
    let limits = json!({"limits": {"http3": {"paths_max": 5}}});
    let Some(site) = start_with(Setup::to_origin(&Origin::saying("x")), limits) else { return };
    let code = site.run(async || {
        let (endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        while connection.close_reason().is_none() {
            endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
            let Ok((mut send, receive)) = connection.open_bi().await else { break };
            let _ = send.write_all(&head("GET", "/", &[])).await;
            let _ = send.finish();
            tokio::select! {
                _ = connection.closed() => {}
                _ = receive_some(receive) => {}
            }
        }
        closed(&connection).await
    });
    assert_eq!(code, EXCESSIVE_LOAD);
    assert_eq!(site.proxy.metric("sluice_http3_abuses_total{reason=\"paths\"}"), 1.0);
}

async fn receive_some(mut stream: quinn::RecvStream) {
    let _ = stream.read(&mut [0; 100]).await;
}

#[test]
fn cancelling_without_a_reset_counts_as_well() {
    let limits = json!({"limits": {"http3": {"resets_max": 20}}});
    let origin = Origin::playing(|mut peer| while peer.next().is_some() {});
    let Some(site) = start_with(Setup::to_origin(&origin), limits) else { return };
    let code = site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        while let Ok((mut send, mut receive)) = connection.open_bi().await {
            let _ = send.write_all(&head("GET", "/", &[])).await;
            let _ = send.finish();
            tokio::task::yield_now().await;
            let _ = receive.stop(raw::code(0x10c));
        }
        closed(&connection).await
    });
    assert_eq!(code, EXCESSIVE_LOAD);
    assert_eq!(site.proxy.metric("sluice_http3_abuses_total{reason=\"resets\"}"), 1.0);
}

#[test]
fn violations_of_the_transport_are_counted() {
    let Some(site) = start(Setup::to_origin(&Origin::saying("x"))) else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
        connection.close(raw::code(0x101), b"");
        until(|| site.proxy.metric("sluice_http3_connections_ended_total") == 1.0).await;
    });
    assert_eq!(site.proxy.metric("sluice_http3_protocol_errors_total"), 0.0, "the client's own word");
}
