//! Opaque bytes: after a requested 101, and on `tcp` listeners; and the PROXY protocol before both.

use serde_json::json;

use crate::support::{ASSISTS, Dead, Origin, Peer, Proxy, Setup, Wire, assert_same, ok, pattern};

const ASK: &str = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Key: x\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: y\r\n\r\n";

/// An origin that upgrades as requested, then plays.
fn switching(play: impl Fn(&mut Peer) + Send + Sync + 'static) -> Origin {
    Origin::playing(move |mut peer| {
        let request = peer.next().unwrap();
        assert_eq!((request.get("connection"), request.get("upgrade")), (Some("upgrade"), Some("websocket")));
        assert_eq!(request.get("sec-websocket-key"), Some("x"));
        peer.send(SWITCH);
        play(&mut peer);
    })
}

fn upgraded(proxy: &Proxy) -> Wire {
    let mut client = proxy.connect();
    client.send(ASK);
    let head = client.head();
    assert_eq!((head.status(), head.get("sec-websocket-accept")), (101, Some("y")));
    assert_eq!((head.get("connection"), head.get("upgrade")), (Some("upgrade"), Some("websocket")));
    client
}

#[test]
fn a_requested_upgrade_becomes_a_tunnel() {
    let origin = switching(|peer| {
        peer.send("welcome");
        assert_eq!(peer.take(5), b"hello");
        peer.send("bye");
        peer.expect_end();
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = upgraded(&proxy);
    assert_eq!(client.take(7), b"welcome");
    client.send("hello");
    assert_eq!(client.take(3), b"bye");
    client.finish();
    client.expect_end();
    let record = proxy.record("/ws");
    assert_eq!((&record["status"], &record["reason"]), (&101.into(), &serde_json::Value::Null));
    assert_eq!(record["bytes_in"], 5);
    // A tunnel this short may end before it is spliced.
    let paths: &[&str] = if std::env::var_os(ASSISTS).is_some() { &["splice", "copy"] } else { &["copy"] };
    assert!(paths.contains(&record["path"].as_str().unwrap()), "{record}");
}

#[test]
fn bytes_sent_with_the_upgrade_are_the_first_of_the_tunnel() {
    let origin = switching(|peer| {
        assert_eq!(peer.take(5), b"early");
        peer.send("got it");
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send(format!("{ASK}early"));
    assert_eq!(client.head().status(), 101);
    assert_eq!(client.take(6), b"got it");
}

#[test]
fn either_side_of_a_tunnel_may_end_first() {
    let origin = switching(|peer| match peer.index {
        0 => {
            let (all, clean) = peer.rest();
            assert!(clean);
            peer.send([b"after your end: ", &all[..]].concat());
        }
        _ => {
            peer.finish();
            let (all, clean) = peer.rest();
            assert_eq!((all.as_slice(), clean), (b"still here".as_slice(), true));
        }
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = upgraded(&proxy);
    client.send("mine");
    client.finish();
    assert_eq!(client.rest(), (b"after your end: mine".to_vec(), true));
    let mut client = upgraded(&proxy);
    assert_eq!(client.rest(), (Vec::new(), true));
    client.send("still here");
    client.finish();
    for record in proxy.records(2, "/ws") {
        assert_eq!((&record["status"], &record["reason"]), (&101.into(), &serde_json::Value::Null));
    }
}

#[test]
fn a_reset_of_a_tunnel_is_forwarded() {
    let origin = Origin::playing(|mut peer| {
        peer.next().unwrap();
        peer.send(SWITCH);
        peer.take(1);
        peer.reset();
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = upgraded(&proxy);
    client.send("x");
    assert_eq!(client.rest(), (Vec::new(), false));
}

#[test]
fn an_unrequested_101_is_a_502() {
    let origin = Origin::answering(|request| match request.target() {
        "/bare" => b"HTTP/1.1 101 Switching Protocols\r\n\r\n".to_vec(),
        "/other" => SWITCH.replace("websocket", "other").into_bytes(),
        "/more" => SWITCH.replace("websocket", "websocket, other").into_bytes(),
        _ => SWITCH.into(),
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let asks = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    let cases = [
        ("GET /plain HTTP/1.1\r\nHost: a\r\n", "no upgrade requested"),
        ("GET /unnamed HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n", "not named by Connection"),
        (&format!("GET /old HTTP/1.0\r\n{asks}"), "HTTP/1.0"),
        (&format!("POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n{asks}"), "POST"),
        ("GET /h2c HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n", "HTTP itself"),
        (&format!("GET /bare HTTP/1.1\r\nHost: a\r\n{asks}"), "the response names no protocol"),
        (&format!("GET /other HTTP/1.1\r\nHost: a\r\n{asks}"), "the response names another protocol"),
        (&format!("GET /more HTTP/1.1\r\nHost: a\r\n{asks}"), "the response names more than was requested"),
    ];
    for (head, what) in cases {
        let answer = proxy.ask(format!("{head}\r\n"));
        assert_eq!(
            (answer.status(), answer.get("x-sluice-reason")),
            (502, Some("unasked_upgrade")),
            "{what}"
        );
    }
}

#[test]
fn a_declined_upgrade_is_an_ordinary_exchange() {
    let origin = Origin::saying("no");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    for _ in 0..2 {
        assert_eq!(client.ask(ASK).text(), "no");
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn an_idle_tunnel_is_closed() {
    let origin = switching(|peer| peer.expect_end());
    let setup = Setup::to_origin(&origin).with("clusters.default.tunnel_idle_timeout_ms", 50);
    let Some(proxy) = setup.start() else { return };
    let mut client = upgraded(&proxy);
    client.expect_end();
    assert_eq!(proxy.record("/ws")["reason"], "tunnel_idle");
}

fn tcp(setup: Setup) -> Setup {
    setup.with("listeners.0.protocol", "tcp").with("listeners.0.cluster", "default")
}

#[test]
fn a_tcp_listener_tunnels_any_bytes() {
    let origin = Origin::playing(|mut peer| {
        peer.send("220 ready\r\n");
        let (all, clean) = peer.rest();
        assert!(clean);
        peer.send(&all);
    });
    let Some(proxy) = tcp(Setup::to_origin(&origin)).start() else { return };
    let mut client = proxy.connect();
    assert_eq!(client.take(11), b"220 ready\r\n", "the origin may speak first");
    let body = pattern(2 << 20);
    let (mut sender, sent) = (client.twin(), body.clone());
    let sending = std::thread::spawn(move || {
        sender.send(sent);
        sender.finish();
    });
    let (back, clean) = client.rest();
    sending.join().unwrap();
    assert!(clean);
    assert_same(&back, &body);
    let record = proxy.record("");
    assert_eq!(
        (&record["bytes_in"], &record["endpoint"]),
        (&body.len().into(), &origin.endpoint.as_str().into())
    );
    assert_eq!(record["bytes_out"], body.len() + 11);
}

#[test]
fn a_tcp_listener_skips_dead_endpoints_and_resets_if_all_are_dead() {
    let (dead, origin) = (Dead::new(), Origin::playing(|mut peer| peer.send("here")));
    let setup = Setup::to(&[&dead.endpoint(), &origin.endpoint])
        .with("clusters.default.balance", "round_robin")
        .with("clusters.gone", json!({"endpoints": [dead.endpoint()]}))
        .with(
            "listeners",
            json!([
                {"name": "main", "address": "127.0.0.1:0", "protocol": "tcp", "cluster": "default"},
                {"name": "gone", "address": "127.0.0.1:0", "protocol": "tcp", "cluster": "gone"},
            ]),
        );
    let Some(proxy) = setup.start() else { return };
    for _ in 0..3 {
        assert_eq!(proxy.connect().rest(), (b"here".to_vec(), true));
    }
    assert_eq!(Wire::connect(proxy.address_of("gone")).rest(), (Vec::new(), false));
    let refused = proxy.records(4, "").into_iter().find(|record| record["listener"] == "gone").unwrap();
    assert_eq!(refused["reason"], "connect_refused");
}

const V1: &[u8] = b"PROXY TCP4 198.51.100.1 127.0.0.1 4660 80\r\n";
const V1_SIX: &[u8] = b"PROXY TCP6 2001:db8::1 ::1 4660 80\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc6\x33\x64\x02\x7f\0\0\x01\x12\x34\0\x50";
const V2_LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";
/// With an extension (a no-op, type 4) after the addresses.
const V2_EXTENDED: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x10\xc6\x33\x64\x03\x7f\0\0\x01\x12\x34\0\x50\x04\0\x01\0";

#[test]
fn the_proxy_protocol_names_the_client() {
    let origin = Origin::answering(|request| ok(request.get("x-forwarded-for").unwrap()));
    let setup = Setup::to_origin(&origin).with("listeners.0.proxy_protocol", "any");
    let Some(proxy) = setup.start() else { return };
    let cases = [
        (V1, "198.51.100.1"),
        (V1_SIX, "2001:db8::1"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1"),
        (V2, "198.51.100.2"),
        (V2_LOCAL, "127.0.0.1"),
        (V2_EXTENDED, "198.51.100.3"),
    ];
    for (header, client) in cases {
        let request = [header, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        assert_eq!(proxy.ask(&request).text(), client, "in one piece");
        let mut wire = proxy.connect();
        for byte in &request {
            wire.send([*byte]);
        }
        assert_eq!(wire.response().text(), client, "byte by byte");
        assert_eq!(wire.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), client, "for the whole connection");
    }
}

#[test]
fn a_connection_without_the_expected_header_is_closed_silently() {
    let origin = Origin::saying("");
    for (expected, bytes) in
        [("v1", V2), ("v2", V1), ("any", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"), ("v1", b"PROXY x\r\n")]
    {
        let setup = Setup::to_origin(&origin).with("listeners.0.proxy_protocol", expected);
        let Some(proxy) = setup.start() else { return };
        let mut client = proxy.connect();
        client.send(bytes);
        client.expect_end();
        assert_eq!(proxy.record("")["reason"], "bad_proxy_protocol", "{expected}");
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_tcp_listener_removes_the_proxy_protocol_header() {
    let origin = Origin::playing(|mut peer| {
        let (all, _) = peer.rest();
        peer.send(all);
    });
    let setup = tcp(Setup::to_origin(&origin)).with("listeners.0.proxy_protocol", "v2");
    let Some(proxy) = setup.start() else { return };
    let mut client = proxy.connect();
    client.send([V2, b"hello"].concat());
    client.finish();
    assert_eq!(client.rest(), (b"hello".to_vec(), true));
    assert_eq!(proxy.record("")["client"], "198.51.100.2");
}
