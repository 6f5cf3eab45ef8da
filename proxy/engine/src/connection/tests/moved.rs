//! Connections that leave their worker between two requests, over real sockets and each engine.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use sluice_ring::{self as ring, Engine};

use super::*;
use crate::connection::MovedConnection;

const GET: &[u8] = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n";

/// Runs on each engine that this host allows.
fn on_each_engine<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for engine in [Engine::Epoll, Engine::IoUring, Engine::TokioUring] {
        if let Err(error) = ring::run(engine, LocalSet::new().run_until(test())) {
            eprintln!("skipped: {engine:?}: {error}");
        }
    }
}

/// A worker that answers by itself.
fn proxy() -> Proxy {
    let route = "path: /x, respond: {status: 200, body: hi}}, {";
    Proxy::with_route(route, ("", ""), Rc::new(|_| Err(std::io::ErrorKind::ConnectionRefused.into())))
}

/// A connection on a socket, and what becomes of it.
fn connect(proxy: &Proxy) -> (UnixStream, JoinHandle<Option<Box<MovedConnection>>>) {
    let (theirs, ours) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let (worker, runners) = (Rc::clone(&proxy.worker), Rc::clone(&proxy.runners));
    let client = SocketAddr::from(([192, 0, 2, 1], 7));
    let stream = Stream::from_socket(OwnedFd::from(ours));
    let connection = Connection::new(worker, runners, Arc::clone(&proxy.listener), stream, client);
    (theirs, spawn_local(Box::new(connection).serve()))
}

/// Receives until there are `count` complete responses, or the end.
async fn responses(client: &mut UnixStream, count: usize) -> usize {
    let (mut received, mut buf) = (Vec::new(), [0; 4096]);
    loop {
        match client.read(&mut buf) {
            Ok(0) => return received.windows(2).filter(|two| two == b"hi").count(),
            Ok(length) => received.extend_from_slice(&buf[..length]),
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
        if received.windows(2).filter(|two| two == b"hi").count() == count {
            return count;
        }
    }
}

#[test]
fn connection_moves_between_two_requests_and_goes_on_elsewhere() {
    on_each_engine(|| async {
        let (first, second) = (proxy(), proxy());
        let (mut client, serving) = connect(&first);
        client.write_all(&GET.repeat(3)).unwrap();
        assert_eq!(responses(&mut client, 3).await, 3);
        // It waits already.
        first.worker.shed(true);
        let moved = serving.await.unwrap().expect("it has moved");
        assert_eq!((first.worker.open_connections(), moved.client.port()), (0, 7));
        let (worker, runners) = (Rc::clone(&second.worker), Rc::clone(&second.runners));
        let serving = spawn_local(Box::new(Connection::resume(worker, runners, *moved)).serve());
        client.write_all(&GET.repeat(2)).unwrap();
        assert_eq!(responses(&mut client, 2).await, 2);
        drop(client);
        assert!(serving.await.unwrap().is_none());
        assert_eq!(second.worker.open_connections(), 0);
    });
}

#[test]
fn connection_with_unread_bytes_stays_without_keeping_its_worker_busy() {
    on_each_engine(|| async {
        let proxy = proxy();
        proxy.worker.shed(true);
        let (mut client, serving) = connect(&proxy);
        // It may be the start of an empty line before the next request.
        client.write_all(&[GET, b"\r"].concat()).unwrap();
        assert_eq!(responses(&mut client, 1).await, 1);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!serving.is_finished());
        client.write_all(&[b"\n", GET].concat()).unwrap();
        assert_eq!(responses(&mut client, 1).await, 1);
        assert!(serving.await.unwrap().is_some(), "nothing is left to stay for");
    });
}

#[test]
fn connection_with_unread_bytes_ends_with_its_worker() {
    on_each_engine(|| async {
        let proxy = proxy();
        let (mut client, serving) = connect(&proxy);
        client.write_all(&[GET, b"\r"].concat()).unwrap();
        assert_eq!(responses(&mut client, 1).await, 1);
        proxy.worker.drain();
        assert!(serving.await.unwrap().is_none());
        assert_eq!(responses(&mut client, 1).await, 0, "closed");
    });
}

#[test]
fn connection_whose_worker_drains_stays_until_it_ends() {
    on_each_engine(|| async {
        let proxy = proxy();
        let (mut client, serving) = connect(&proxy);
        client.write_all(GET).unwrap();
        assert_eq!(responses(&mut client, 1).await, 1);
        proxy.worker.shed(true);
        // Its wait is cancelled now, which the kernel has yet to say.
        tokio::task::yield_now().await;
        proxy.worker.announce_drain();
        client.write_all(GET).unwrap();
        match serving.await.unwrap() {
            // With epoll, a wait ends at once.
            Some(_) => {}
            None => assert_eq!(responses(&mut client, 1).await, 1, "the last one is served"),
        }
    });
}
