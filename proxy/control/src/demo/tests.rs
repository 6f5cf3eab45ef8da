//! The demo origin over real sockets: what a first visitor with curl would see.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Bytes, Message};

/// One origin for all tests of this file.
fn origin() -> std::net::SocketAddr {
    static ORIGIN: OnceLock<std::net::SocketAddr> = OnceLock::new();
    *ORIGIN.get_or_init(|| super::start(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap().address)
}

/// Sends a request and reads to the end: head and body.
fn ask(request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(origin()).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

fn get(target: &str) -> (String, String) {
    ask(&format!("GET {target} HTTP/1.1\r\nHost: demo\r\nX-Mark: \u{fc}\r\nConnection: close\r\n\r\n"))
}

#[test]
fn page_and_echo_show_the_received_head() {
    for target in ["/", "/echo?q=1"] {
        let (head, body) = get(target);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(body.contains(&format!("GET {target} HTTP/1.1\nhost: demo\n")), "{body}");
        assert!(body.contains("x-mark: \u{fc}\n"));
    }
    assert!(get("/nope").0.starts_with("HTTP/1.1 404 "));
}

#[test]
fn bodies_are_echoed_unchanged_and_at_once() {
    let length = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: a/b\r\nContent-Length: 5\r\nConnection: close\r\n\r\n";
    let (head, body) = ask(&format!("{length}hello"));
    assert!(head.contains("content-length: 5") && head.contains("content-type: a/b"), "{head}");
    assert_eq!(body, "hello");

    let mut stream = TcpStream::connect(origin()).unwrap();
    stream
        .write_all(b"PUT /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        .unwrap();
    let mut answer = BufReader::new(stream.try_clone().unwrap());
    // The first piece arrives before the second is sent.
    read_until(&mut answer, "3\r\none\r\n");
    stream.write_all(b"4\r\nmore\r\n0\r\n\r\n").unwrap();
    read_until(&mut answer, "4\r\nmore\r\n0\r\n\r\n");
}

fn read_until(stream: &mut impl BufRead, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        assert!(
            stream.read_until(b'\n', &mut text).unwrap() > 0,
            "ended at {}",
            String::from_utf8_lossy(&text)
        );
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn bytes_are_counted_and_limited() {
    for n in [0, 1, 64 * 256, 64 * 256 + 1, 3_000_000] {
        let (head, body) = get(&format!("/bytes?n={n}"));
        assert!(head.contains(&format!("content-length: {n}\r\n")), "{head}");
        assert_eq!(body.len(), n);
    }
    let (head, body) = ask("HEAD /bytes?n=10737418240 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(head.contains("content-length: 10737418240") && body.is_empty(), "{head}");
    assert_eq!(get("/bytes?n=10737418241").1, "n must be a number from 0 to 10737418240\n");
    assert!(get("/bytes?n=-1").0.starts_with("HTTP/1.1 400 "));
}

#[test]
fn streams_arrive_in_pieces() {
    let (head, body) = get("/stream?n=3&ms=1");
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    assert_eq!(body, "7\r\nline 1\n\r\n7\r\nline 2\n\r\n7\r\nline 3\n\r\n0\r\n\r\n");
    let accept = "GET /stream?n=1 HTTP/1.0\r\nAccept: text/event-stream\r\n\r\n";
    let (head, body) = ask(accept);
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    assert_eq!(body, "id: 1\ndata: line 1\n\n");
}

#[test]
fn statuses_and_delays_are_as_requested() {
    let (head, body) = get("/status?code=418");
    assert!(head.starts_with("HTTP/1.1 418 I'm a teapot\r\n"), "{head}");
    assert_eq!(body, "418 I'm a teapot\n");
    let (head, body) = get("/status?code=204");
    assert!(head.starts_with("HTTP/1.1 204 ") && !head.contains("content-"), "{head}");
    assert_eq!(body, "");
    assert!(get("/status?code=100").0.starts_with("HTTP/1.1 400 "));
    assert!(get("/status?code=x").0.starts_with("HTTP/1.1 400 "));
    assert_eq!(get("/delay?ms=1").1, "after 1 ms\n");
    assert!(get("/delay?ms=60001").0.starts_with("HTTP/1.1 400 "));
}

#[test]
fn a_websocket_echoes_responds_to_pings_and_closes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(origin()).await.unwrap();
        let (mut socket, response) = tokio_tungstenite::client_async("ws://demo/ws", stream).await.unwrap();
        assert_eq!(response.status(), 101);
        for message in [Message::text("grüße"), Message::binary(vec![0; 100_000]), Message::text("")] {
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        socket.send(Message::Ping(Bytes::from_static(b"hi"))).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::Pong(Bytes::from_static(b"hi")));
        let frame = CloseFrame { code: CloseCode::Normal, reason: "done".into() };
        socket.close(Some(frame.clone())).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::Close(Some(frame)));
        assert!(socket.next().await.is_none());
    });
}

#[test]
fn a_plain_request_to_the_websocket_gets_426() {
    let (head, _) = get("/ws");
    assert!(head.starts_with("HTTP/1.1 426 ") && head.contains("upgrade: websocket"), "{head}");
}
