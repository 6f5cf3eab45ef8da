//! Requests for the same response at the same time: one goes, the others wait, and none waits for too long.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::json;
use socket2::{Domain, Socket, Type};

use super::{caching, get, is_hit, request, response, serve, told};
use crate::support::{Origin, Proxy, Wire, poll};

/// A door that is closed at first.
#[derive(Clone, Default)]
struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    fn pass(&self) {
        let (open, changed) = &*self.0;
        drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

fn ask_all(proxy: &Proxy, count: usize, target: &str) -> Vec<Wire> {
    (0..count)
        .map(|_| {
            let mut wire = proxy.connect();
            wire.send(request(target, ""));
            wire
        })
        .collect()
}

#[test]
fn one_request_goes_for_all() {
    let door = Door::default();
    let inner = door.clone();
    let origin = Origin::answering(move |request| {
        inner.pass();
        match request.target() {
            "/chunks" => {
                b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"
                    .to_vec()
            }
            _ => response("Cache-Control: max-age=60\r\n", "body"),
        }
    });
    let Some(proxy) = caching(&origin, json!({})).with("workers", json!(2)).start() else { return };
    let mut wires = ask_all(&proxy, 100, "/");
    wires.extend(ask_all(&proxy, 100, "/chunks"));
    poll("both have gone", || (origin.connections() >= 2).then_some(()));
    door.open();
    for wire in &mut wires {
        assert_eq!(wire.response().text(), "body");
    }
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn the_next_one_goes_when_the_first_client_leaves() {
    let door = Door::default();
    let inner = door.clone();
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    let origin = Origin::answering(move |_| {
        if seen.fetch_add(1, SeqCst) == 0 {
            inner.pass();
        }
        response("Cache-Control: max-age=60\r\n", "body")
    });
    let Some(proxy) = serve(&origin, json!({"wait_max": "10m"})) else { return };
    let first = ask_all(&proxy, 1, "/").remove(0);
    poll("the first has gone", || (count.load(SeqCst) == 1).then_some(()));
    let mut others = ask_all(&proxy, 20, "/");
    first.reset();
    for wire in &mut others {
        assert_eq!(wire.response().text(), "body");
    }
    assert_eq!(count.load(SeqCst), 2);
    door.open();
}

#[test]
fn nobody_waits_for_longer_than_configured() {
    let door = Door::default();
    let inner = door.clone();
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    let origin = Origin::answering(move |_| {
        if seen.fetch_add(1, SeqCst) == 0 {
            inner.pass();
        }
        response("Cache-Control: max-age=60\r\n", "body")
    });
    let Some(proxy) = serve(&origin, json!({"wait_max": "50ms"})) else { return };
    let mut first = ask_all(&proxy, 1, "/").remove(0);
    poll("the first has gone", || (count.load(SeqCst) == 1).then_some(()));
    for wire in &mut ask_all(&proxy, 20, "/") {
        assert_eq!(wire.response().text(), "body");
    }
    assert!(count.load(SeqCst) < 5, "{count:?}");
    door.open();
    assert_eq!(first.response().text(), "body");
}

#[test]
fn what_is_for_one_client_is_not_waited_for_twice() {
    let door = Door::default();
    let inner = door.clone();
    let origin = Origin::answering(move |request| {
        inner.pass();
        response("Cache-Control: private\r\n", request.get("x-who").unwrap_or_default())
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    let mut wires: Vec<_> = (0..30)
        .map(|at| {
            let mut wire = proxy.connect();
            wire.send(request("/", &format!("X-Who: {at}\r\n")));
            wire
        })
        .collect();
    poll("the first has gone", || (origin.connections() == 1).then_some(()));
    door.open();
    for (at, wire) in wires.iter_mut().enumerate() {
        assert_eq!(wire.response().text(), at.to_string());
    }
    // From now on a client's own condition reaches the application.
    assert_eq!(get(&proxy, "/", "If-None-Match: \"a\"\r\nX-Who: b\r\n").text(), "b");
    assert_eq!(origin.last().get("if-none-match"), Some("\"a\""));
}

#[test]
fn a_failure_is_shared() {
    let origin = Origin::playing(|mut peer| {
        if peer.next().is_some() {
            // Until sluice gives up.
            peer.into_wire().rest();
        }
    });
    let setup = caching(&origin, json!({"wait_max": "10m"}))
        .with("clusters.default.retry", json!({"attempts_max": 0}))
        .with("clusters.default.response_timeout", "2s");
    let Some(proxy) = setup.start() else { return };
    for wire in &mut ask_all(&proxy, 20, "/") {
        assert_eq!(wire.response().status(), 504);
    }
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn a_response_that_breaks_off_is_not_stored() {
    let count = AtomicUsize::new(0);
    let origin = Origin::playing(move |mut peer| {
        while let Some(request) = peer.next() {
            let round = count.fetch_add(1, SeqCst);
            let whole = match request.target() {
                "/length" => response("Cache-Control: max-age=60\r\n", "0123456789"),
                _ => b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n".to_vec(),
            };
            if round.is_multiple_of(2) {
                peer.send(&whole[..whole.len() - 8]);
                return;
            }
            peer.send(&whole);
        }
    });
    let setup = caching(&origin, json!({})).with("clusters.default.retry", json!({"attempts_max": 0}));
    let Some(proxy) = setup.start() else { return };
    // Nothing was sent of what is received whole first.
    assert_eq!(get(&proxy, "/length", "").status(), 502);
    assert_eq!(get(&proxy, "/length", "").text(), "0123456789");
    assert!(is_hit(&get(&proxy, "/length", "")));
    let mut wire = proxy.connect();
    wire.send(request("/chunks", ""));
    assert!(!wire.rest().0.ends_with(b"0\r\n\r\n"));
    assert_eq!(told(&get(&proxy, "/chunks", "")), "sluice; fwd=uri-miss; stored");
    assert!(is_hit(&get(&proxy, "/chunks", "")));
}

#[test]
fn a_change_during_a_request_keeps_its_response_out() {
    let door = Door::default();
    let inner = door.clone();
    let origin = Origin::answering(move |request| {
        if !request.line.starts_with("GET") {
            return b"HTTP/1.1 204 No Content\r\n\r\n".to_vec();
        }
        inner.pass();
        response("Cache-Control: max-age=60\r\n", "before")
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    let mut wire = ask_all(&proxy, 1, "/").remove(0);
    poll("it has gone", || (origin.requests().len() == 1).then_some(()));
    let changed = proxy.ask("PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\n\r\na");
    assert!(changed.status() < 300, "{}", changed.status());
    door.open();
    assert_eq!(wire.response().text(), "before");
    assert!(!is_hit(&get(&proxy, "/", "")));
}

#[test]
fn a_slow_client_holds_up_nobody() {
    let body = crate::support::pattern(900_000);
    let sent = body.clone();
    let origin = Origin::answering(move |_| {
        let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n";
        [head.as_bytes(), format!("{:x}\r\n", sent.len()).as_bytes(), &sent, b"\r\n0\r\n\r\n"].concat()
    });
    let Some(proxy) = serve(&origin, json!({"wait_max": "10m"})) else { return };
    // It reads nothing, and its socket takes less than the body.
    let mut slow = slow_client(&proxy);
    slow.send(request("/", ""));
    poll("it has gone", || (origin.requests().len() == 1).then_some(()));
    for _ in 0..3 {
        crate::support::assert_same(&get(&proxy, "/", "").body, &body);
    }
    assert_eq!(origin.requests().len(), 1);
    crate::support::assert_same(&slow.response().body, &body);
}

#[test]
fn an_endless_response_is_not_waited_for() {
    let origin = Origin::playing(|mut peer| {
        if peer.next().is_some() {
            let mut wire = peer.into_wire();
            wire.send("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n");
            while wire.try_send(format!("1000\r\n{}\r\n", "a".repeat(4096))).is_ok() {}
        }
    });
    let Some(proxy) = serve(&origin, json!({"wait_max": "10m", "object_max": "64k"})) else { return };
    let mut wires = ask_all(&proxy, 3, "/");
    for wire in &mut wires {
        let mut head = wire.head();
        for _ in 0..50 {
            assert_eq!(wire.chunk(&mut head).map(|chunk| chunk.iter().all(|byte| *byte == b'a')), Some(true));
        }
    }
    assert_eq!(origin.requests().len(), 3);
}

#[test]
fn a_response_that_took_longer_than_it_may_be_used_is_for_all_that_wait() {
    let door = Door::default();
    let inner = door.clone();
    let origin = Origin::answering(move |_| {
        inner.pass();
        // As if it had taken a minute.
        response("Cache-Control: max-age=1\r\nAge: 60\r\nETag: \"a\"\r\n", "body")
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    let mut wires = ask_all(&proxy, 50, "/");
    poll("all have arrived", || (proxy.metric("sluice_downstream_connections_open") >= 50.0).then_some(()));
    door.open();
    for wire in &mut wires {
        assert_eq!(wire.response().text(), "body");
    }
    assert!(origin.requests().len() < 10, "{}", origin.requests().len());
}

/// A client whose socket takes little.
fn slow_client(proxy: &Proxy) -> Wire {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&proxy.address().into()).unwrap();
    Wire::from(std::net::TcpStream::from(socket))
}

#[test]
fn a_slow_client_gets_an_encoded_body_whole() {
    // Little of it is left when it is encoded, so an encoder holds back more than a piece.
    let body: Vec<u8> =
        (0..45_000_u32).flat_map(|at| format!("line {:016}\n", at % 977).into_bytes()).collect();
    let sent = body.clone();
    let origin = Origin::answering(move |request| {
        let kind = "Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";
        // One that is kept, and one that is too large.
        let times = if request.target().starts_with("/large") { 4 } else { 1 };
        let mut out = format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n{kind}").into_bytes();
        for piece in sent.repeat(times).chunks(50_000) {
            out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            out.extend_from_slice(piece);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"0\r\n\r\n");
        out
    });
    let routes = json!([{"cluster": "default", "cache": "pages", "compress": {}}]);
    let setup = caching(&origin, json!({})).with("routes", routes);
    let Some(proxy) = setup.with("compression", json!({"cpu_percent_max": 100})).start() else { return };
    for coding in ["gzip", "zstd", "br"] {
        for (target, times) in [(format!("/{coding}"), 1), (format!("/large/{coding}"), 4)] {
            let mut slow = slow_client(&proxy);
            slow.send(request(&target, &format!("Accept-Encoding: {coding}\r\n")));
            let answer = slow.response();
            assert_eq!(answer.get("content-encoding"), Some(coding), "{target}");
            crate::support::assert_same(
                &crate::compression::decoded(coding, &answer.body),
                &body.repeat(times),
            );
        }
    }
    assert!(is_hit(&get(&proxy, "/gzip", "")) && !is_hit(&get(&proxy, "/large/gzip", "")));
}

#[test]
fn a_small_body_that_is_too_large_is_not_kept() {
    let origin = Origin::answering(|_| {
        let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n";
        format!("{head}800\r\n{}\r\n0\r\n\r\n", "a".repeat(2048)).into_bytes()
    });
    let Some(proxy) = serve(&origin, json!({"object_max": "1k"})) else { return };
    for _ in 0..2 {
        let answer = get(&proxy, "/", "");
        assert_eq!((answer.body.len(), is_hit(&answer)), (2048, false));
    }
}

#[test]
fn users_of_an_application_that_knows_no_caches_do_not_wait_for_each_other() {
    let door = Door::default();
    let inner = door.clone();
    let origin = Origin::answering(move |request| {
        if request.get("x-first").is_some() {
            inner.pass();
        }
        response(
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
            request.get("cookie").unwrap_or_default(),
        )
    });
    let Some(proxy) = serve(&origin, json!({"wait_max": "10m"})) else { return };
    let mut first = proxy.connect();
    first.send(request("/", "X-First: a\r\nCookie: a=0\r\n"));
    poll("it has gone", || (origin.requests().len() == 1).then_some(()));
    let mut others: Vec<_> = (1..20)
        .map(|at| {
            let mut wire = proxy.connect();
            wire.send(request("/", &format!("Cookie: a={at}\r\n")));
            wire
        })
        .collect();
    door.open();
    assert_eq!(first.response().text(), "a=0");
    for (at, wire) in others.iter_mut().enumerate() {
        assert_eq!(wire.response().text(), format!("a={}", at + 1));
    }
}
