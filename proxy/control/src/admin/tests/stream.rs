//! Streams of events: their content, their number, and how they end.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::{Duration, Instant};

use super::*;

const FOLLOW: &[u8] = b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// A client of a connection that buffers at most `room` unread bytes.
fn client(state: &Arc<AdminState>, room: usize) -> (DuplexStream, tokio::task::JoinHandle<()>) {
    let (client, server) = tokio::io::duplex(room);
    (client, tokio::spawn(connection(server, Arc::clone(state), Arc::default())))
}

async fn read_until(stream: &mut DuplexStream, wanted: &str) -> String {
    let mut text = String::new();
    while !text.contains(wanted) {
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece).await.unwrap();
        assert!(n > 0, "the stream ended before {wanted}: {text}");
        text.push_str(&String::from_utf8_lossy(&piece[..n]));
    }
    text
}

#[tokio::test(start_paused = true)]
async fn a_stream_starts_complete_and_outlasts_other_connections() {
    let state = state();
    tokio::spawn(status::run(Arc::clone(&state.live)));
    let (mut stream, _connection) = client(&state, 1 << 20);
    stream.write_all(FOLLOW).await.unwrap();
    let begun = Instant::now();
    let first = read_until(&mut stream, "\n\n").await;
    assert!(first.contains("content-type: text/event-stream\r\n"), "{first}");
    assert!(first.contains("event: whole\ndata: {") && first.contains("\"fixed\":{\"version\":\"1\""));
    while begun.elapsed() < 3 * CONNECTION_TIMEOUT {
        let next = read_until(&mut stream, "\n\n").await;
        assert!(next.contains("event: change\ndata: {\"schema\":1,"), "{next}");
        assert!(!next.contains("\"fixed\""));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_when_its_reader_stalls() {
    let state = state();
    tokio::spawn(status::run(Arc::clone(&state.live)));
    let (mut stream, connection) = client(&state, 1 << 10);
    stream.write_all(FOLLOW).await.unwrap();
    read_until(&mut stream, "event: whole").await;
    let begun = Instant::now();
    // Nothing is read from here on; further events fill the connection's buffer and then hyper's.
    connection.await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(300));
    drop(stream);
    let (mut stream, _connection) = client(&state, 1 << 20);
    stream.write_all(FOLLOW).await.unwrap();
    read_until(&mut stream, "event: whole").await;
}

#[tokio::test(start_paused = true)]
async fn the_number_of_streams_is_limited() {
    let state = state();
    tokio::spawn(status::run(Arc::clone(&state.live)));
    let mut open = Vec::new();
    for _ in 0..16 {
        let (mut stream, connection) = client(&state, 1 << 20);
        stream.write_all(FOLLOW).await.unwrap();
        read_until(&mut stream, "event: whole").await;
        open.push((stream, connection));
    }
    let (mut late, _connection) = client(&state, 1 << 20);
    late.write_all(FOLLOW).await.unwrap();
    let answer = read_until(&mut late, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");

    let (stream, connection) = open.pop().unwrap();
    drop(stream);
    connection.await.unwrap();
    let (mut next, _connection) = client(&state, 1 << 20);
    next.write_all(FOLLOW).await.unwrap();
    read_until(&mut next, "event: whole").await;
}
