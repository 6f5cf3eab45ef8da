//! Single requests: heads, bodies, trailers, interim responses, websockets.

use bytes::{Buf, Bytes};
use http::HeaderMap;
use serde_json::json;

use super::client::{ask, get, post, to};
use super::raw::{DATA, control, frame, section};
use super::{raw, start, start_with};
use crate::support::{Origin, Setup, Wire, assert_same, ok, pattern};

#[test]
fn a_request_is_an_ordinary_exchange() {
    let origin = Origin::saying("hello");
    let Some(site) = start_with(Setup::to_origin(&origin), json!({"hsts": {"max_age_s": 60}})) else {
        return;
    };
    let answer = site.talk(async |sender| get(&sender, "/x?y=z").await);
    assert_eq!((answer.status(), &answer.body[..]), (200, &b"hello"[..]));
    assert_eq!(answer.get("content-length"), Some("5"));
    assert_eq!((answer.get("strict-transport-security"), answer.get("alt-svc")), (Some("max-age=60"), None));
    let seen = origin.last();
    assert_eq!((seen.line.as_str(), seen.get("host")), ("GET /x?y=z HTTP/1.1", Some("a.test")));
    assert_eq!(
        (seen.get("x-forwarded-for"), seen.get("x-forwarded-proto")),
        (Some("127.0.0.1"), Some("https"))
    );
    let record = site.proxy.record("/x?y=z");
    assert_eq!((&record["protocol"], &record["status"]), (&json!("HTTP/3.0"), &json!(200)));
    assert_eq!(site.proxy.metric("sluice_http3_streams_total"), 1.0);
    assert_eq!(
        site.proxy.metric("sluice_tls_handshakes_total{version=\"1.3\",resumed=\"no\"}"),
        1.0,
        "counted like any other"
    );
}

#[test]
fn clients_over_tcp_learn_of_it() {
    let origin = Origin::saying("hello");
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    let address = site.proxy.address_of("main");
    let client = std::sync::Arc::new(site.authority.client());
    let mut wire = Wire::connect_tls(address, "a.test", &client).unwrap();
    let expected = format!("h3=\":{}\"; ma=86400", address.port());
    for (target, status) in [("/", 200), ("*", 400)] {
        let answer = wire.ask(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
        assert_eq!((answer.status(), answer.get("alt-svc")), (status, Some(expected.as_str())));
    }
}

#[test]
fn bodies_with_and_without_length_are_forwarded() {
    let Some(site) = start(Setup::to_origin(&Origin::echoing())) else { return };
    let body = pattern(3_000_000);
    site.talk(async |sender| {
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
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\ngrpc-status: 0\r\n\r\n"
            .to_vec()
    });
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "abc".parse().unwrap());
    let request = to("/grpc").method("POST").header("te", "trailers").body(()).unwrap();
    let answer = site.talk(async |sender| post(&sender, request, b"1234", Some(trailers)).await);
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
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    site.talk(async |sender| {
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
        let mut request = peer.head();
        assert_eq!(request.get("expect"), Some("100-continue"));
        peer.send("HTTP/1.1 100 Continue\r\n\r\n");
        peer.body(&mut request, true);
        peer.send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        peer.send(ok(request.text()));
        peer.next();
    });
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    let received = site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&raw::head("POST", "/", &[("expect", "100-continue")])).await.unwrap();
        let mut first = [0; 3];
        receive.read_exact(&mut first).await.unwrap();
        assert_eq!(first[0], 1, "a head before the body was sent");
        send.write_all(&frame(DATA, b"now")).await.unwrap();
        send.finish().unwrap();
        [first.to_vec(), raw::rest(receive).await.unwrap()].concat()
    });
    let kinds: Vec<u8> = kinds(&received);
    assert_eq!(kinds, [1, 1, 1, 0], "100, 103, 200 and the body");
    assert!(received.ends_with(b"now"));
}

/// The types of the frames.
fn kinds(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let [kind, length, ..] = *bytes {
        kinds.push(kind);
        let (length, size) = match length {
            0..0x40 => (usize::from(length), 2),
            _ => (usize::from(length & 0x3f) << 8 | usize::from(bytes[2]), 3),
        };
        bytes = &bytes[size + length..];
    }
    kinds
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
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let head = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":authority", "a.test"),
            (":path", "/ws"),
        ];
        send.write_all(&frame(raw::HEADERS, &section(&head))).await.unwrap();
        let mut received = Vec::new();
        let mut until = async |wanted: &[u8]| {
            while !received.ends_with(wanted) {
                received.extend_from_slice(&receive.read_chunk(1000, true).await.unwrap().unwrap().bytes);
            }
        };
        until(b"first").await;
        send.write_all(&frame(DATA, b"ping")).await.unwrap();
        until(b"pong").await;
        send.finish().unwrap();
        until(b"last").await;
        assert!(receive.read_chunk(1, true).await.unwrap().is_none());
        // :status 200, which is a line of the static table.
        assert_eq!(&received[2..5], [0, 0, 0xc0 | 25]);
    });
}

#[test]
fn events_arrive_one_by_one() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let origin = Origin::playing(move |mut peer| {
        peer.next().unwrap();
        peer.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            peer.send(format!("{:x}\r\n{event}\r\n", event.len()));
            gone.lock().unwrap().recv().unwrap();
        }
        peer.send("0\r\n\r\n");
        peer.next();
    });
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    site.talk(async |sender| {
        let mut stream = sender.clone().send_request(to("/events").body(()).unwrap()).await.unwrap();
        stream.finish().await.unwrap();
        stream.recv_response().await.unwrap();
        for event in [&b"data: 1\n\n"[..], b"data: 2\n\n"] {
            let mut data = stream.recv_data().await.unwrap().unwrap();
            assert_eq!(data.copy_to_bytes(data.remaining()), Bytes::from_static(event));
            go.send(()).unwrap();
        }
        assert!(stream.recv_data().await.unwrap().is_none());
    });
}

#[test]
fn a_hundred_requests_share_a_connection() {
    let origin = Origin::answering(|request| ok(&format!("<{}>", request.target())));
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    site.talk(async |sender| {
        let asked: Vec<_> = (0..100)
            .map(|number| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, &format!("/{number}")).await })
            })
            .collect();
        for (number, answer) in asked.into_iter().enumerate() {
            assert_eq!(answer.await.unwrap().body, format!("</{number}>").as_bytes());
        }
    });
    assert_eq!(site.proxy.metric("sluice_http3_connections_total"), 1.0);
}

/// How long sluice waits for the end of a request that follows its head.
const END_PATIENCE: std::time::Duration = std::time::Duration::from_millis(20);

#[test]
fn a_request_whose_end_follows_has_no_body() {
    let origin = Origin::saying("x");
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        // On a busy machine the end may follow too late. Then sluice has waited for it.
        for _ in 0..50 {
            let begun = std::time::Instant::now();
            let (mut send, receive) = connection.open_bi().await.unwrap();
            send.write_all(&raw::head("GET", "/", &[])).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            send.finish().unwrap();
            assert!(raw::rest(receive).await.unwrap().ends_with(b"x"));
            if origin.last().get("transfer-encoding").is_none() {
                return;
            }
            assert!(begun.elapsed() >= END_PATIENCE, "sluice did not wait for the end");
        }
        panic!("sluice never noticed the end");
    });
}

/// The response of one request takes all the room that the client's acknowledgements make.
#[test]
fn a_head_does_not_wait_for_its_body() {
    let body = pattern(30_000_000);
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let origin = Origin::playing(move |mut peer| {
        while let Some(request) = peer.next() {
            if request.target() == "/big" {
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
                peer.send(body.clone());
            } else {
                peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                gone.lock().unwrap().recv().unwrap();
                peer.send("0\r\n\r\n");
            }
        }
    });
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    site.talk(async |sender| {
        let big = tokio::spawn({
            let sender = sender.clone();
            async move { get(&sender, "/big").await.body.len() }
        });
        let mut stream = sender.clone().send_request(to("/head").body(()).unwrap()).await.unwrap();
        stream.finish().await.unwrap();
        assert_eq!(stream.recv_response().await.unwrap().status(), 200, "before the origin has more");
        go.send(()).unwrap();
        assert!(stream.recv_data().await.unwrap().is_none());
        assert_eq!(big.await.unwrap(), 30_000_000);
    });
}

#[test]
fn large_responses_share_the_connection() {
    let body = pattern(4_000_000);
    let origin = Origin::answering(move |_| {
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(), body.clone()]
            .concat()
    });
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    site.talk(async |sender| {
        let asked: Vec<_> = (0..8)
            .map(|_| {
                let sender = sender.clone();
                tokio::spawn(async move { get(&sender, "/").await.body.len() })
            })
            .collect();
        for length in asked {
            assert_eq!(length.await.unwrap(), 4_000_000);
        }
    });
}
