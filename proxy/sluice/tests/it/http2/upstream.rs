//! HTTP/2 to endpoints: one connection for many exchanges, in both directions at once, with every kind of end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use h2::server::Builder;
use http::HeaderMap;
use tokio::sync::Barrier;

use super::client::{answer, get, piece, post, send, talk, talk_by, to};
use super::server::{Asked, Server, head};
use crate::support::{Authority, Origin, Setup, assert_same, pattern, poll};

pub(super) fn setup(server: &Server) -> Setup {
    Setup::to(&[&server.endpoint])
        .with("listeners.0.http2", "prior_knowledge")
        .with("clusters.default.protocol", "h2")
}

fn status(code: &str) -> HeaderMap {
    HeaderMap::from_iter([("grpc-status".parse().unwrap(), code.parse().unwrap())])
}

/// Sends back each piece as it arrives, and then how the request ended.
async fn echo(mut asked: Asked) {
    let mut stream = asked.begin(200, &[("content-type", "application/grpc")]);
    while let Some(Ok(data)) = asked.request.body_mut().data().await {
        asked.request.body_mut().flow_control().release_capacity(data.len()).unwrap();
        send(&mut stream, &data).await;
    }
    stream.send_trailers(status("0")).unwrap();
}

#[test]
fn requests_that_http2_cannot_express_are_refused() {
    let server = Server::new(|mut asked| async move {
        let mut stream = asked.begin(200, &[]);
        stream.send_data(Bytes::from_static(b"hi"), true).unwrap();
    });
    let Some(proxy) = setup(&server).start() else { return };
    for (target, host) in [("/<", "a"), ("/`", "a"), ("/?q=\"x\"", "a"), ("/", "a%41")] {
        let answer = proxy.connect().ask(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!((answer.status(), answer.get("x-sluice-reason")), (400, Some("bad_request")), "{target}");
    }
    assert_eq!(proxy.get("/").text(), "hi");
    assert_eq!(proxy.metric("sluice_retries_total"), 0.0);
}

#[test]
fn a_call_is_forwarded_with_its_trailers() {
    let (seen, sees) = channel();
    let server = Server::new(move |mut asked| {
        let seen = seen.clone();
        async move {
            let fields = ["te", "content-type", "grpc-timeout"].map(|name| asked.field(name));
            let uri = asked.request.uri().to_string();
            let (body, trailers) = asked.body().await;
            seen.send((uri, fields, body, trailers)).unwrap();
            let mut stream = asked.begin(200, &[("content-type", "application/grpc")]);
            stream.send_data(Bytes::from_static(b"reply"), false).unwrap();
            stream.send_trailers(status("0")).unwrap();
        }
    });
    let Some(proxy) = setup(&server).start() else { return };
    let call = to("/pkg.Service/Method").method("POST").header("te", "trailers");
    let call = call.header("content-type", "application/grpc").header("grpc-timeout", "5S").body(()).unwrap();
    let reply = talk(&proxy, async |sender| post(&sender, call, b"call", None).await);
    let (uri, fields, body, trailers) = sees.recv().unwrap();
    assert_eq!(uri, "http://a.test/pkg.Service/Method");
    assert_eq!(fields, ["trailers", "application/grpc", "5S"]);
    assert_eq!((body.as_slice(), trailers), (&b"call"[..], None));
    assert_eq!((reply.status(), reply.body.as_slice()), (200, &b"reply"[..]));
    assert_eq!(reply.get("content-length"), None);
    assert_eq!(reply.trailers, Some(status("0")));
    assert_eq!(proxy.outcome("/pkg.Service/Method").0, 200);
}

#[test]
fn a_trailers_only_response_stays_one() {
    let server = Server::new(async |mut asked| {
        asked.bare(200, &[("content-type", "application/grpc"), ("grpc-status", "12")]);
    });
    let Some(proxy) = setup(&server).start() else { return };
    let reply = talk(&proxy, async |sender| {
        post(&sender, to("/a").method("POST").body(()).unwrap(), b"x", None).await
    });
    assert_eq!((reply.status(), reply.get("grpc-status"), reply.body.len()), (200, Some("12"), 0));
    assert_eq!(reply.trailers, None);
}

/// gRPC servers end a call early like this (RFC 9113 section 8.1): trailers, then NO_ERROR for the unread request.
#[test]
fn a_response_may_end_before_its_request() {
    let server = Server::new(async |mut asked| {
        let mut stream = asked.begin(200, &[("content-type", "application/grpc")]);
        stream.send_data(Bytes::from_static(b"message"), false).unwrap();
        // The window is full, and is not opened again.
        let mut received = 0;
        while received < 65_535 {
            received += asked.request.body_mut().data().await.unwrap().unwrap().len();
        }
        stream.send_trailers(status("0")).unwrap();
    });
    let Some(proxy) = setup(&server).start() else { return };
    let reply = talk(&proxy, async |sender| {
        let mut sender = sender.ready().await.unwrap();
        let request = to("/call").method("POST").body(()).unwrap();
        let (response, mut stream) = sender.send_request(request, false).unwrap();
        let sending = async {
            loop {
                stream.reserve_capacity(16 * 1024);
                let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                let Some(Ok(room)) = room else { return std::future::pending().await };
                let _ = stream.send_data(Bytes::from(vec![0; room]), false);
            }
        };
        tokio::select! {
            () = sending => unreachable!(),
            reply = async { answer(response.await.unwrap()).await.unwrap() } => reply,
        }
    });
    assert_eq!((reply.status(), reply.body.as_slice()), (200, &b"message"[..]));
    assert_eq!(reply.trailers, Some(status("0")));
    assert_eq!(proxy.outcome("/call"), (200, "-".to_owned()));
}

#[test]
fn both_directions_flow_at_once() {
    let server = Server::new(echo);
    let Some(proxy) = setup(&server).start() else { return };
    talk(&proxy, async |sender| {
        let mut sender = sender.ready().await.unwrap();
        let request = to("/chat").method("POST").body(()).unwrap();
        let (response, mut stream) = sender.send_request(request, false).unwrap();
        // The response head comes before any message.
        let mut body = response.await.unwrap().into_body();
        for number in 0..50 {
            let said = format!("message {number}").into_bytes();
            send(&mut stream, &said).await;
            let mut heard = Vec::new();
            while heard.len() < said.len() {
                heard.extend_from_slice(&piece(&mut body).await.unwrap().unwrap());
            }
            assert_eq!(heard, said);
        }
        stream.send_data(Bytes::new(), true).unwrap();
        assert!(piece(&mut body).await.is_none());
        assert_eq!(body.trailers().await.unwrap(), Some(status("0")));
    });
}

#[test]
fn large_bodies_are_forwarded_in_both_directions() {
    let server = Server::new(echo);
    let Some(proxy) = setup(&server).start() else { return };
    let body = pattern(5 << 20);
    let reply = talk(&proxy, async |sender| {
        post(&sender, to("/").method("POST").body(()).unwrap(), &body, None).await
    });
    assert_same(&reply.body, &body);
    // The same from an HTTP/1.1 client.
    let mut wire = proxy.connect();
    wire.send(format!("POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 300_000));
    wire.send(pattern(300_000));
    let reply = wire.response();
    assert_same(&reply.body, &pattern(300_000));
}

async fn all_at_once(sender: &SendRequest<Bytes>, count: usize) {
    let asked: Vec<_> = (0..count)
        .map(|number| {
            let sender = sender.clone();
            tokio::spawn(async move { get(&sender, &format!("/{number}")).await })
        })
        .collect();
    for (number, asked) in asked.into_iter().enumerate() {
        let answer = asked.await.unwrap();
        assert_eq!((answer.status(), answer.body), (200, format!("/{number}").into_bytes()));
    }
}

/// Responds to each request with its path, once enough of them have arrived.
async fn answer_together(mut asked: Asked, barrier: Arc<Barrier>) {
    barrier.wait().await;
    let path = asked.path().to_owned();
    asked.answer(path.as_bytes());
}

#[test]
fn a_hundred_exchanges_share_a_connection() {
    let barrier = Arc::new(Barrier::new(100));
    let server = Server::new(move |asked| answer_together(asked, Arc::clone(&barrier)));
    let Some(proxy) = setup(&server).start() else { return };
    talk(&proxy, async |sender| all_at_once(&sender, 100).await);
    talk(&proxy, async |sender| all_at_once(&sender, 100).await);
    assert_eq!((server.connections(), server.requests()), (1, 200));
}

#[test]
fn requests_beyond_the_stream_limit_use_another_connection() {
    let barrier = Arc::new(Barrier::new(40));
    let mut builder = Builder::new();
    builder.max_concurrent_streams(10);
    let server = Server::by(builder, usize::MAX, move |asked| answer_together(asked, Arc::clone(&barrier)));
    let Some(proxy) = setup(&server).start() else { return };
    talk(&proxy, async |sender| all_at_once(&sender, 40).await);
    assert_eq!((server.connections(), server.requests()), (4, 40));
}

#[test]
fn goaway_loses_no_request() {
    let server = Server::by(Builder::new(), 3, async |mut asked| {
        let path = asked.path().to_owned();
        asked.answer(path.as_bytes());
    });
    let Some(proxy) = setup(&server).start() else { return };
    talk(&proxy, async |sender| {
        for _ in 0..5 {
            all_at_once(&sender, 20).await;
        }
    });
    assert!(server.connections() > 1, "{}", server.connections());
    poll("the ends of all connections but one", || (server.open() <= 1).then_some(()));
}

#[test]
fn refused_streams_are_sent_again() {
    let server = Server::new(async |mut asked| match asked.number {
        0 => asked.respond.send_reset(Reason::REFUSED_STREAM),
        _ => {
            let (body, _) = asked.body().await;
            asked.answer(&body);
        }
    });
    let Some(proxy) = setup(&server).start() else { return };
    let asked = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nonce";
    let reply = proxy.ask(asked);
    assert_eq!((reply.status(), reply.text(), server.requests()), (200, "once", 2));
}

#[test]
fn a_slow_reader_blocks_only_its_exchange_and_costs_little() {
    const LARGE: usize = 32 << 20;
    let server = Server::new(async |mut asked| {
        if asked.path() == "/small" {
            return asked.answer(b"small");
        }
        let mut stream = asked.begin(200, &[]);
        send(&mut stream, &pattern(LARGE)).await;
        stream.send_data(Bytes::new(), true).unwrap();
    });
    let Some(proxy) = setup(&server).start() else { return };
    let mut builder = h2::client::Builder::new();
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
        let mut whole = Vec::new();
        while let Some(data) = piece(&mut body).await {
            whole.extend_from_slice(&data.unwrap());
        }
        assert_same(&whole, &pattern(LARGE));
    });
    assert_eq!(server.connections(), 1);
}

#[test]
fn heads_of_every_kind_are_forwarded() {
    let server = Server::new(async |mut asked| match asked.path() {
        "/hints" => {
            asked.respond.send_informational(head(103, &[("link", "</a>")])).unwrap();
            asked.bare(204, &[]);
        }
        "/counted" => {
            let mut stream = asked.begin(200, &[("content-length", "5")]);
            stream.send_data(Bytes::from_static(b"count"), true).unwrap();
        }
        _ => asked.bare(404, &[]),
    });
    let Some(proxy) = setup(&server).start() else { return };
    let mut wire = proxy.connect();
    wire.send("GET /hints HTTP/1.1\r\nHost: a\r\n\r\n");
    let hints = wire.head();
    assert_eq!((hints.status(), hints.get("link")), (103, Some("</a>")));
    assert_eq!(wire.head().status(), 204);
    let counted = proxy.get("/counted");
    assert_eq!((counted.text(), counted.get("content-length")), ("count", Some("5")));
    assert_eq!(proxy.get("/none").get("content-length"), Some("0"));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_connection_without_exchanges_is_closed() {
    let server = Server::new(async |mut asked| asked.answer(b"here"));
    let setup = setup(&server).with("clusters.default.pool", serde_json::json!({"idle_timeout_ms": 100}));
    let Some(proxy) = setup.start() else { return };
    assert_eq!(proxy.get("/").text(), "here");
    poll("the end of the connection", || (server.open() == 0).then_some(()));
    assert_eq!(proxy.get("/").text(), "here");
    assert_eq!(server.connections(), 2);
}

#[test]
fn an_endpoint_with_another_protocol_is_a_502() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let origin = Origin::playing(move |mut peer| {
        count.fetch_add(1, SeqCst);
        peer.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    });
    let setup = Setup::to_origin(&origin).with("clusters.default.protocol", "h2");
    let Some(proxy) = setup.start() else { return };
    assert_eq!(proxy.get("/").status(), 502);
    assert_eq!(proxy.outcome("/"), (502, "connect_failed".to_owned()));
    assert!(asked.load(SeqCst) > 0);
}

/// A server with a valid certificate that offers these protocols by ALPN.
fn secured(protocols: &[&[u8]]) -> (Server, Setup) {
    let authority = Authority::new();
    let mut tls = authority.identity(&["inner.test"]).server();
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let server = Server::secured(tls, async |mut asked| {
        let uri = asked.request.uri().to_string();
        asked.answer(uri.as_bytes());
    });
    let setup = setup(&server);
    let file = setup.file("ca.pem", &authority.pem());
    let tls = serde_json::json!({"ca_file": file, "server_name": "inner.test"});
    (server, setup.with("clusters.default.tls", tls))
}

#[test]
fn with_tls_http2_is_negotiated() {
    let (server, setup) = secured(&[b"h2", b"http/1.1"]);
    let Some(proxy) = setup.start() else { return };
    assert_eq!(proxy.get("/a").text(), "https://a.test/a");
    assert_eq!(proxy.get("/b").status(), 200);
    assert_eq!(server.connections(), 1);
}

#[test]
fn an_endpoint_that_does_not_negotiate_http2_is_a_502() {
    let (server, setup) = secured(&[b"http/1.1"]);
    let Some(proxy) = setup.start() else { return };
    assert_eq!(proxy.get("/").status(), 502);
    assert_eq!(proxy.outcome("/"), (502, "tls_handshake_failed".to_owned()));
    assert_eq!(server.connections(), 0);
}
