//! Single requests: heads, bodies, trailers, interim responses, websockets.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::ext::Protocol;
use http::HeaderMap;
use serde_json::json;

use super::client::{answer, ask, get, piece, post, talk, to};
use super::setup;
use crate::support::{Origin, assert_same, ok, pattern};

#[test]
fn a_request_is_an_ordinary_exchange() {
    let origin = Origin::saying("hello");
    let Some(proxy) = setup(&origin).start() else { return };
    let answer = talk(&proxy, async |sender| get(&sender, "/x?y=z").await);
    assert_eq!((answer.status(), &answer.body[..]), (200, &b"hello"[..]));
    assert_eq!(answer.get("content-length"), Some("5"));
    let seen = origin.last();
    assert_eq!((seen.line.as_str(), seen.get("host")), ("GET /x?y=z HTTP/1.1", Some("a.test")));
    assert_eq!((seen.get("x-forwarded-for"), seen.get("transfer-encoding")), (Some("127.0.0.1"), None));
    let record = proxy.record("/x?y=z");
    assert_eq!((&record["protocol"], &record["status"]), (&json!("HTTP/2.0"), &json!(200)));
    assert_eq!(proxy.metric("sluice_http2_streams_total"), 1.0);
    assert_eq!(proxy.get("/old").status(), 200, "the listener accepts HTTP/1.1 too");
    assert_eq!(proxy.record("/old")["protocol"], "HTTP/1.1");
}

#[test]
fn bodies_with_and_without_length_are_forwarded() {
    let Some(proxy) = setup(&Origin::echoing()).start() else { return };
    let body = pattern(3_000_000);
    talk(&proxy, async |sender| {
        for length in [0, 1, 5000, 100_000, body.len()] {
            let body = &body[..length];
            let counted = to("/counted").method("POST").header("content-length", length).body(()).unwrap();
            let answer = post(&sender, counted, body, None).await;
            assert_same(&answer.body, body);
            let plain = to("/plain").method("POST").body(()).unwrap();
            let answer = post(&sender, plain, body, None).await;
            assert_eq!((answer.status(), answer.get("transfer-encoding")), (200, None));
            assert_same(&answer.body, body);
        }
    });
}

#[test]
fn trailers_are_forwarded_in_both_directions() {
    let origin = Origin::answering(|request| {
        assert_eq!(request.get("te"), Some("trailers"));
        assert_eq!(request.get("connection"), Some("te"));
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\ngrpc-status: 0\r\n\r\n"
            .to_vec()
    });
    let Some(proxy) = setup(&origin).start() else { return };
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "abc".parse().unwrap());
    let request = to("/grpc").method("POST").header("te", "trailers").body(()).unwrap();
    let answer = talk(&proxy, async |sender| post(&sender, request, b"1234", Some(trailers)).await);
    assert_eq!(
        (&answer.body[..], &answer.trailers.unwrap()["grpc-status"]),
        (&b"ok"[..], &"0".parse().unwrap())
    );
    let seen = origin.last();
    assert_eq!((seen.text(), &seen.trailers[..]), ("1234", &[("x-sum".to_owned(), "abc".to_owned())][..]));
}

#[test]
fn responses_without_a_body_end_with_their_head() {
    let origin = Origin::answering(|request| match request.target() {
        "/204" => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        "/304" => b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\nETag: \"a\"\r\n\r\n".to_vec(),
        "/empty" => ok(""),
        _ => b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n".to_vec(),
    });
    let Some(proxy) = setup(&origin).start() else { return };
    talk(&proxy, async |sender| {
        let head = ask(&sender, to("/head").method("HEAD").body(()).unwrap()).await;
        assert_eq!((head.status(), head.get("content-length"), head.body.len()), (200, Some("7"), 0));
        for (path, status) in [("/204", 204), ("/304", 304), ("/empty", 200)] {
            let answer = get(&sender, path).await;
            assert_eq!((answer.status(), answer.body.len()), (status, 0), "{path}");
        }
    });
}

#[test]
fn interim_responses_come_first() {
    let origin = Origin::playing(|mut peer| {
        let request = peer.head();
        assert_eq!(request.get("expect"), Some("100-continue"));
        peer.send("HTTP/1.1 100 Continue\r\n\r\n");
        let mut request = request;
        peer.body(&mut request, true);
        peer.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        peer.send(ok(request.text()));
        peer.next();
    });
    let Some(proxy) = setup(&origin).start() else { return };
    talk(&proxy, async |sender| {
        let mut sender = sender.ready().await.unwrap();
        let request = to("/").method("POST").header("expect", "100-continue").body(()).unwrap();
        let (mut response, mut stream) = sender.send_request(request, false).unwrap();
        let first = poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
        assert_eq!(first.status().as_u16(), 100);
        stream.send_data(Bytes::from_static(b"now"), true).unwrap();
        let second = poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
        assert_eq!((second.status().as_u16(), &second.headers()["link"]), (103, &"</a>".parse().unwrap()));
        let answer = answer(response.await.unwrap()).await.unwrap();
        assert_eq!((answer.status(), &answer.body[..]), (200, &b"now"[..]));
    });
}

#[test]
fn cookie_crumbs_are_joined_and_connection_fields_are_removed() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nContent-Length: 0\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n"
            .to_vec()
    });
    let Some(proxy) = setup(&origin).start() else { return };
    let request = to("/").header("cookie", "a=1").header("x", "y").header("cookie", "b=2").body(()).unwrap();
    let answer = talk(&proxy, async |sender| ask(&sender, request).await);
    assert_eq!(origin.last().all("cookie"), ["a=1; b=2"]);
    assert_eq!((answer.get("keep-alive"), answer.get("connection")), (None, None));
    assert_eq!(answer.head.headers().get_all("set-cookie").iter().count(), 2);
}

#[test]
fn a_websocket_is_a_tunnel_in_its_stream() {
    let origin = Origin::playing(|mut peer| {
        let request = peer.next().unwrap();
        assert_eq!((request.line.as_str(), request.get("upgrade")), ("GET /ws HTTP/1.1", Some("websocket")));
        assert_eq!(request.get("sec-websocket-key").map(str::len), Some(24));
        peer.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Accept: y\r\n\r\nfirst",
        );
        assert_eq!(peer.take(4), b"ping");
        peer.send("pong");
        assert_eq!(peer.rest().0, b"", "the client's end is forwarded");
        peer.send("last");
    });
    let Some(proxy) = setup(&origin).start() else { return };
    talk(&proxy, async |mut sender| {
        // Our settings must have arrived, because they permit it.
        get_settings(&mut sender).await;
        let request =
            to("/ws").method("CONNECT").extension(Protocol::from_static("websocket")).body(()).unwrap();
        let (response, mut stream) = sender.send_request(request, false).unwrap();
        let response = response.await.unwrap();
        assert_eq!((response.status().as_u16(), response.headers().get("upgrade")), (200, None));
        let mut body = response.into_body();
        assert_eq!(&piece(&mut body).await.unwrap().unwrap()[..], b"first");
        stream.send_data(Bytes::from_static(b"ping"), false).unwrap();
        assert_eq!(&piece(&mut body).await.unwrap().unwrap()[..], b"pong");
        stream.send_data(Bytes::new(), true).unwrap();
        let mut rest = Vec::new();
        while let Some(data) = piece(&mut body).await {
            rest.extend_from_slice(&data.unwrap());
        }
        assert_eq!(rest, b"last");
    });
    assert_eq!(proxy.record("/ws")["status"], 101);
}

async fn get_settings(sender: &mut h2::client::SendRequest<Bytes>) {
    while !sender.is_extended_connect_protocol_enabled() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
