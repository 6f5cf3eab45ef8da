//! Concurrent requests: each at its own speed, each with its own end.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::Reason;
use h2::client::Builder;

use super::client::{answer, get, piece, send, talk, talk_by, to};
use super::setup;
use crate::support::{Answer, Origin, assert_same, ok, pattern, until};

#[test]
fn a_hundred_streams_are_served_at_once() {
    let origin = Origin::answering(|request| {
        let number: usize = request.target()[1..].parse().unwrap();
        let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", number * 331).into_bytes();
        answer.extend_from_slice(&pattern(number * 331));
        answer
    });
    let Some(proxy) = setup(&origin).start() else { return };
    talk(&proxy, async |sender| {
        let asked: Vec<_> = (0..100)
            .map(|number| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, &format!("/{number}")).await })
            })
            .collect();
        for (number, asked) in asked.into_iter().enumerate() {
            let answer: Answer = asked.await.unwrap();
            assert_eq!(answer.status(), 200);
            assert_same(&answer.body, &pattern(number * 331));
        }
    });
    assert_eq!(proxy.metric("sluice_http2_streams_total"), 100.0);
    assert_eq!(proxy.metric("sluice_http2_connections_total"), 1.0);
    assert_eq!(proxy.metric("sluice_downstream_connections_total"), 1.0);
}

#[test]
fn a_slow_reader_blocks_only_its_stream_and_costs_little() {
    const LARGE: usize = 64 << 20;
    let origin = Origin::playing(|mut peer| {
        while let Some(request) = peer.next() {
            if request.target() != "/large" {
                peer.send(ok("small"));
                continue;
            }
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"));
            let piece = pattern(1 << 20);
            for _ in 0..64 {
                peer.send(&piece);
            }
        }
    });
    let Some(proxy) = setup(&origin).start() else { return };
    let mut builder = Builder::new();
    builder.initial_connection_window_size(8 << 20).initial_window_size(1 << 20);
    talk_by(&proxy, &builder, async |sender| {
        let before = proxy.memory_kb();
        let mut ready = sender.clone().ready().await.unwrap();
        let (response, _) = ready.send_request(to("/large").body(()).unwrap(), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        for _ in 0..50 {
            assert_eq!(get(&sender, "/small").await.body, b"small");
        }
        let grown = proxy.memory_kb().saturating_sub(before);
        assert!(grown < 16 * 1024, "{grown} KB for unread bytes");
        let mut length = 0;
        while let Some(data) = piece(&mut body).await {
            length += data.unwrap().len();
        }
        assert_eq!(length, LARGE);
    });
}

#[test]
fn a_slow_application_blocks_only_its_upload() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let seen = Arc::new(Mutex::new(0));
    let received = Arc::clone(&seen);
    let origin = Origin::playing(move |mut peer| {
        let Ok(mut head) = peer.try_head() else { return };
        if head.target() == "/slow" {
            wait.lock().unwrap().recv().unwrap();
        }
        peer.body(&mut head, true);
        *received.lock().unwrap() = head.body.len();
        peer.send(ok("done"));
    });
    let Some(proxy) = setup(&origin).start() else { return };
    let body = pattern(20 << 20);
    talk(&proxy, async |sender| {
        let before = proxy.memory_kb();
        let mut ready = sender.clone().ready().await.unwrap();
        let request = to("/slow").method("POST").body(()).unwrap();
        let (response, mut stream) = ready.send_request(request, false).unwrap();
        let sending = async {
            send(&mut stream, &body).await;
            stream.send_data(Bytes::new(), true).unwrap();
        };
        let others = async {
            for _ in 0..20 {
                assert_eq!(get(&sender, "/other").await.body, b"done");
            }
            let grown = proxy.memory_kb().saturating_sub(before);
            assert!(grown < 12 * 1024, "{grown} KB for unread bytes");
            go.send(()).unwrap();
        };
        tokio::join!(sending, others);
        assert_eq!(answer(response.await.unwrap()).await.unwrap().body, b"done");
    });
    assert_eq!(*seen.lock().unwrap(), body.len());
}

#[test]
fn a_client_that_resets_ends_its_exchange() {
    let (gone, ended) = channel();
    let gone = Mutex::new(gone);
    let origin = Origin::playing(move |mut peer| {
        let request = peer.next().unwrap();
        if request.target() == "/wait" {
            gone.lock().unwrap().send(peer.rest()).unwrap();
        } else {
            peer.send(ok("well"));
        }
    });
    let Some(proxy) = setup(&origin).start() else { return };
    talk(&proxy, async |sender| {
        let mut ready = sender.clone().ready().await.unwrap();
        let (response, mut stream) = ready.send_request(to("/wait").body(()).unwrap(), true).unwrap();
        // It is established when the origin has it.
        until(|| !origin.requests().is_empty()).await;
        stream.send_reset(Reason::CANCEL);
        drop(response);
        assert_eq!(get(&sender, "/next").await.body, b"well", "the connection is kept");
    });
    assert_eq!(ended.recv_timeout(crate::support::PATIENCE).unwrap().0, b"", "the origin's connection ends");
    assert_eq!(proxy.outcome("/wait"), (499, "client_gone".to_owned()));
}

#[test]
fn a_truncated_response_is_not_complete() {
    let origin = Origin::playing(|mut peer| {
        let request = peer.next().unwrap();
        match request.target() {
            "/counted" => peer.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"),
            "/chunked" => peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n"),
            _ => {}
        }
    });
    let Some(proxy) = setup(&origin).start() else { return };
    talk(&proxy, async |sender| {
        for path in ["/counted", "/chunked"] {
            let mut ready = sender.clone().ready().await.unwrap();
            let (response, _) = ready.send_request(to(path).body(()).unwrap(), true).unwrap();
            // The reset may overtake the head.
            let error = match response.await {
                Ok(response) => answer(response).await.err(),
                Err(error) => Some(error),
            };
            assert_eq!(error.unwrap().reason(), Some(Reason::INTERNAL_ERROR), "{path}");
        }
        let answer = get(&sender, "/nothing").await;
        assert_eq!(answer.status(), 502, "a failure before the head is a response");
    });
    assert_eq!(proxy.outcome("/counted"), (200, "response_truncated".to_owned()));
}

#[test]
fn an_early_response_ends_the_upload() {
    let origin = Origin::playing(|mut peer| {
        peer.head();
        peer.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nno!");
        peer.rest();
    });
    let Some(proxy) = setup(&origin).start() else { return };
    talk(&proxy, async |sender| {
        let mut ready = sender.clone().ready().await.unwrap();
        let request = to("/").method("POST").body(()).unwrap();
        let (response, mut stream) = ready.send_request(request, false).unwrap();
        stream.send_data(Bytes::from_static(b"some"), false).unwrap();
        let answer = answer(response.await.unwrap()).await.unwrap();
        assert_eq!((answer.status(), &answer.body[..]), (413, &b"no!"[..]));
        // The rest of the request is not wanted any more, which is not an error (RFC 9113 section 8.1).
        let reset = std::future::poll_fn(|cx| stream.poll_reset(cx)).await.unwrap();
        assert_eq!(reset, Reason::NO_ERROR);
    });
}
