//! The admin listener over real sockets.

#![allow(clippy::unwrap_used)]

mod gate;
mod stream;

use std::io::{Read, Write};
use std::net::TcpStream;

use super::answer::INDEX;
use super::*;
use crate::status;

const LOOPBACK: Address =
    Address::Ip(SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0));

fn state() -> Arc<AdminState> {
    let listener = AdminListener::bind(&LOOPBACK, false).unwrap();
    gated(Gate::new(&listener, &LOOPBACK, None))
}

fn gated(gate: Gate) -> Arc<AdminState> {
    made(gate, false)
}

fn made(gate: Gate, metrics_only: bool) -> Arc<AdminState> {
    let metrics = Metrics::new();
    Arc::new(AdminState {
        metrics_only,
        draining: Arc::default(),
        live: status::tests::live(Arc::clone(&metrics)),
        gate,
        streams: Streams::default(),
        metrics,
        clusters: Box::new(|| serde_json::json!({"puma": []})),
        config: Box::new(|| serde_json::json!({"workers": 2})),
    })
}

/// Runs `client` while the listener is served.
fn with_admin<T: Send + 'static>(
    listener: AdminListener,
    state: Arc<AdminState>,
    client: impl FnOnce() -> T + Send + 'static,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::select! {
            served = serve(listener, state) => panic!("{served:?}"),
            done = tokio::task::spawn_blocking(client) => done.unwrap(),
        }
    })
}

fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn tcp() -> (AdminListener, std::net::SocketAddr) {
    let listener = AdminListener::bind(&LOOPBACK, false).unwrap();
    let AdminListener::Tcp(tcp) = &listener else { panic!("a TCP address binds a TCP socket") };
    let address = tcp.local_addr().unwrap();
    (listener, address)
}

#[test]
fn metrics_only_listener_serves_metrics_on_any_address() {
    let any = Address::Ip(SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0));
    assert!(AdminListener::bind(&any, false).is_err());
    let listener = AdminListener::bind(&any, true).unwrap();
    let AdminListener::Tcp(tcp) = &listener else { panic!("a TCP address binds a TCP socket") };
    let port = tcp.local_addr().unwrap().port();
    let state = made(Gate::new(&listener, &any, None), true);
    let [metrics, health, index, config] = with_admin(listener, state, move || {
        ["/metrics", "/healthz", "/", "/config"].map(|path| {
            let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            ask(stream, &format!("GET {path} HTTP/1.1\r\nHost: sluice:{port}\r\nConnection: close\r\n\r\n"))
        })
    });
    assert!(metrics.contains("sluice_build_info") && health.ends_with("ok\n"), "{metrics}{health}");
    for hidden in [index, config] {
        assert!(hidden.starts_with("HTTP/1.1 404 "), "{hidden}");
    }
}

#[test]
fn metrics_are_open_metrics_if_requested() {
    let (listener, address) = tcp();
    let metrics = with_admin(listener, state(), move || {
        let stream = TcpStream::connect(address).unwrap();
        let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        ask(stream, &format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"))
    });
    assert!(metrics.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(metrics.ends_with("# EOF\n"));
}

#[test]
fn each_path_has_its_content_type() {
    let (listener, address) = tcp();
    let answers = with_admin(listener, state(), move || {
        ["/", "/healthz", "/metrics", "/clusters?x", "/config", "/nope"].map(|path| {
            let stream = TcpStream::connect(address).unwrap();
            ask(stream, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        })
    });
    let [index, health, metrics, clusters, config, nope] = answers;
    assert!(index.starts_with("HTTP/1.1 200 ") && index.ends_with(INDEX));
    assert!(health.starts_with("HTTP/1.1 200 ") && health.ends_with("\r\n\r\nok\n"));
    assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert!(metrics.contains("\nvary: accept\r\n") && metrics.contains("# TYPE sluice_build_info gauge\n"));
    assert!(clusters.contains("content-type: application/json\r\n"));
    for (answer, expected) in
        [(clusters, serde_json::json!({"puma": []})), (config, serde_json::json!({"workers": 2}))]
    {
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap(), expected);
    }
    assert!(nope.starts_with("HTTP/1.1 404 "));
}

#[test]
fn a_drain_makes_healthz_503_and_other_methods_are_refused() {
    let (listener, address) = tcp();
    let state = state();
    state.draining.store(true, std::sync::atomic::Ordering::Relaxed);
    let answers = with_admin(listener, state, move || {
        ["GET /healthz", "HEAD /healthz", "POST /config", "DELETE /nope", "\u{1}"].map(|line| {
            let stream = TcpStream::connect(address).unwrap();
            ask(stream, &format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
        })
    });
    let [get, head, post, delete, garbage] = answers;
    assert!(get.starts_with("HTTP/1.1 503 ") && get.ends_with("draining\n"));
    assert!(head.starts_with("HTTP/1.1 503 ") && head.ends_with("\r\n\r\n"));
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD\r\n"));
    assert!(delete.starts_with("HTTP/1.1 404 "));
    assert!(garbage.starts_with("HTTP/1.1 400 "));
}

#[test]
fn connections_beyond_the_limit_wait() {
    let (listener, address) = tcp();
    with_admin(listener, state(), move || {
        let mut silent: Vec<_> = (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut late = TcpStream::connect(address).unwrap();
        late.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        // A slot is free once one of the silent connections has gone.
        silent.truncate(CONNECTIONS_MAX - 1);
        let mut answer = String::new();
        late.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn a_unix_socket_replaces_only_a_stale_one() {
    let path = std::env::temp_dir().join(format!("sluice-admin-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let address = Address::Unix(path.clone());
    drop(AdminListener::bind(&address, false).unwrap());
    let listener = AdminListener::bind(&address, false).unwrap();
    assert!(AdminListener::bind(&address, false).is_err(), "a live listener is not replaced");
    let at = path.clone();
    let answer = with_admin(listener, state(), move || {
        ask(UnixStream::connect(at).unwrap(), "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    });
    assert!(answer.starts_with("HTTP/1.1 200 "));
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert!(AdminListener::bind(&address, false).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
}
