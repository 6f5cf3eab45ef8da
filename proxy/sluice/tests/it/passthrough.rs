//! TLS that is passed through untouched, to the cluster of the server name.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use serde_json::{Value, json};

use crate::support::{Authority, Identity, Origin, Setup, Wire, assert_same, pattern};

/// SSLRequest and GSSENCRequest of PostgreSQL's protocol.
const SSL_REQUEST: &[u8] = &[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
const GSSENC_REQUEST: &[u8] = &[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30];
/// Fatal alerts as records: unrecognized_name, decode_error.
const UNRECOGNIZED: &[u8] = &[21, 3, 3, 0, 2, 2, 112];
const DECODE_ERROR: &[u8] = &[21, 3, 3, 0, 2, 2, 50];

/// An origin that sends its name, then echoes.
fn origin(identity: &Identity, says: &'static str) -> Origin {
    Origin::playing_tls(identity.server(), move |mut peer| {
        peer.send(says);
        let (all, clean) = peer.rest();
        assert!(clean);
        peer.send(&all);
        peer.finish();
    })
}

/// A listener with clusters of one origin each.
fn setup(listener: Value, clusters: &[(&str, &Origin)]) -> Setup {
    let mut listener = listener;
    listener["name"] = "main".into();
    listener["address"] = "127.0.0.1:0".into();
    listener["protocol"] = "tls-passthrough".into();
    let clusters =
        clusters.iter().map(|(name, origin)| ((*name).to_owned(), json!({"endpoints": [origin.endpoint]})));
    Setup::to(&[]).with("listeners", json!([listener])).with("clusters", Value::Object(clusters.collect()))
}

fn hello(config: &ClientConfig, name: &str) -> Vec<u8> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config.clone()), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn each_name_goes_to_its_own_cluster_untouched() {
    let authority = Authority::new();
    let one = origin(&authority.identity(&["one.test"]), "one");
    let two = origin(&authority.identity(&["x.two.test"]), "two");
    let other = origin(&authority.identity(&["127.0.0.1", "three.test"]), "other");
    let sni = json!({"sni": {"one.test": "one", "*.Two.test": "two"}, "cluster": "other"});
    let Some(proxy) = setup(sni, &[("one", &one), ("two", &two), ("other", &other)]).start() else { return };
    let client = Arc::new(authority.client());
    let cases = [("one.test", "one"), ("x.two.test", "two"), ("three.test", "other"), ("127.0.0.1", "other")];
    for (name, says) in cases {
        // Each certificate is valid for only one name, so this one is its server's, end to end.
        let mut wire = Wire::connect_tls(proxy.address(), name, &client).unwrap();
        assert_eq!(wire.take(says.len()), says.as_bytes());
        let body = pattern(300_000);
        wire.send(&body);
        wire.finish();
        let (back, clean) = wire.rest();
        assert!(clean);
        assert_same(&back, &body);
    }
    let records = proxy.records(4, "");
    let of = |host: &str| records.iter().find(|record| record["host"] == host).unwrap();
    assert_eq!((&of("one.test")["cluster"], &of("x.two.test")["cluster"]), (&"one".into(), &"two".into()));
    assert_eq!(of("one.test")["endpoint"], one.endpoint);
    assert!(
        records
            .iter()
            .all(|record| record["reason"] == Value::Null && record["bytes_in"].as_u64() > Some(300_000))
    );
}

#[test]
fn a_client_hello_may_be_split_arbitrarily() {
    let authority = Authority::new();
    let one = origin(&authority.identity(&["one.test"]), "one");
    let Some(proxy) = setup(json!({"sni": {"one.test": "one"}}), &[("one", &one)]).start() else { return };
    let client = Arc::new(authority.client());
    for record_bytes in [usize::MAX, 50] {
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from("one.test").unwrap();
        let mut session = ClientConnection::new(Arc::clone(&client), name).unwrap();
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes).unwrap();
        for byte in split(&bytes, record_bytes) {
            stream.write_all(&[byte]).unwrap();
        }
        let mut stream = rustls::StreamOwned::new(session, stream);
        let mut said = [0; 3];
        stream.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"one");
    }
}

/// The same message in records of at most `bytes` bytes.
fn split(record: &[u8], bytes: usize) -> Vec<u8> {
    let pieces = record[5..].chunks(bytes.min(1 << 14));
    let records = pieces.map(|piece| {
        let length = u16::try_from(piece.len()).unwrap().to_be_bytes();
        [&record[..3], &length, piece].concat()
    });
    records.collect::<Vec<_>>().concat()
}

#[test]
fn an_unknown_name_gets_an_alert() {
    let authority = Authority::new();
    let one = origin(&authority.identity(&["one.test"]), "one");
    let Some(proxy) = setup(json!({"sni": {"one.test": "one"}}), &[("one", &one)]).start() else { return };
    let client = authority.client();
    for name in ["two.test", "sub.one.test", "127.0.0.1"] {
        let mut wire = proxy.connect();
        wire.send(hello(&client, name));
        assert_eq!(wire.rest(), (UNRECOGNIZED.to_vec(), true), "{name}");
    }
    let error = Wire::connect_tls(proxy.address(), "two.test", &Arc::new(client)).err().unwrap();
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    let records = proxy.records(4, "");
    assert!(records.iter().all(|record| record["reason"] == "unknown_server_name"));
    assert!(records.iter().any(|record| record["host"] == "sub.one.test"));
    assert_eq!(proxy.metric("sluice_errors_total{reason=\"unknown_server_name\",side=\"downstream\"}"), 4.0);
    assert_eq!(one.connections(), 0);
}

#[test]
fn invalid_client_hellos_are_not_forwarded() {
    let authority = Authority::new();
    let one = origin(&authority.identity(&["one.test"]), "one");
    let bounded = json!({"cluster": "one", "client_hello_bytes_max": 256});
    let Some(proxy) = setup(bounded, &[("one", &one)]).start() else { return };
    let real = hello(&authority.client(), "one.test");
    assert!(real.len() > 256);
    let cases: [(&[u8], &[u8], &str); 4] = [
        (b"GET / HTTP/1.1\r\nHost: one.test\r\n\r\n", b"", "not_tls"),
        (b"\x16\x03\x01\0\0", DECODE_ERROR, "bad_client_hello"),
        (b"\x16\x03\x01\x02\x00\x02\0\0\0", DECODE_ERROR, "bad_client_hello"),
        (&real, DECODE_ERROR, "client_hello_too_large"),
    ];
    for (count, (bytes, answer, expected)) in cases.into_iter().enumerate() {
        let mut wire = proxy.connect();
        wire.send(bytes);
        assert_eq!(wire.rest().0, answer, "{expected}");
        assert_eq!(proxy.records(count + 1, "")[count]["reason"], expected);
    }
    // Half a ClientHello, then the end; and a connection without any bytes, which is not logged.
    drop(proxy.connect());
    let mut wire = proxy.connect();
    wire.send([22, 3, 1, 0, 90, 1, 0, 0, 86]);
    wire.finish();
    wire.expect_end();
    assert_eq!(proxy.records(5, "")[4]["reason"], "client_gone");
    assert_eq!(one.connections(), 0);
}

#[test]
fn a_missing_client_hello_times_out() {
    let authority = Authority::new();
    let one = origin(&authority.identity(&["one.test"]), "one");
    let impatient = json!({"cluster": "one", "client_hello_timeout_ms": 50});
    let Some(proxy) = setup(impatient, &[("one", &one)]).start() else { return };
    let mut silent = proxy.connect();
    silent.expect_end();
    let mut slow = proxy.connect();
    slow.send(&hello(&authority.client(), "one.test")[..100]);
    slow.expect_end();
    let records = proxy.records(2, "");
    assert!(records.iter().all(|record| record["reason"] == "client_hello_timeout"), "{records:?}");
}

#[test]
fn the_proxy_protocol_header_precedes_tls() {
    let authority = Authority::new();
    let one = origin(&authority.identity(&["one.test"]), "one");
    let behind = json!({"sni": {"one.test": "one"}, "proxy_protocol": "v1"});
    let Some(proxy) = setup(behind, &[("one", &one)]).start() else { return };
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    let client = Arc::new(authority.client());
    let name = ServerName::try_from("one.test").unwrap();
    let mut session = ClientConnection::new(client, name).unwrap();
    let mut bytes = b"PROXY TCP4 198.51.100.1 127.0.0.1 4660 443\r\n".to_vec();
    session.write_tls(&mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut stream = rustls::StreamOwned::new(session, stream);
    let mut said = [0; 3];
    stream.read_exact(&mut said).unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    drop(stream);
    assert_eq!(proxy.record("")["client"], "198.51.100.1");
}

/// Starts like PostgreSQL, then TLS; the test determines the server's response to SSLRequest.
fn database(identity: &Identity, answer: &'static [u8]) -> Origin {
    let config = Arc::new(identity.server());
    Origin::playing(move |peer| {
        let mut wire = peer.into_wire();
        assert_eq!(wire.take(8), SSL_REQUEST);
        wire.send(answer);
        if answer == b"S" {
            let mut wire = wire.accept_tls(&config).unwrap();
            wire.send("ready");
            wire.rest();
        }
    })
}

#[test]
fn postgres_tls_is_negotiated_with_sslrequest() {
    let authority = Authority::new();
    let identity = authority.identity(&["db.test", "direct.test"]);
    let db = database(&identity, b"S");
    let direct = origin(&identity, "ready");
    let listener = json!({"sni": {"db.test": "db"}, "cluster": "direct", "starttls": "postgres"});
    let Some(proxy) = setup(listener, &[("db", &db), ("direct", &direct)]).start() else { return };
    let client = Arc::new(authority.client());
    for asks in [&[SSL_REQUEST][..], &[GSSENC_REQUEST, SSL_REQUEST]] {
        let mut wire = proxy.connect();
        for request in asks {
            wire.send(request);
            let expected = if *request == SSL_REQUEST { b"S" } else { b"N" };
            assert_eq!(wire.take(1), expected);
        }
        let mut wire = wire.secured("db.test", &client).unwrap();
        assert_eq!(wire.take(5), b"ready");
    }
    // With sslnegotiation=direct nothing precedes TLS, in either direction.
    let mut wire = Wire::connect_tls(proxy.address(), "direct.test", &client).unwrap();
    assert_eq!(wire.take(5), b"ready");
}

#[test]
fn a_database_without_tls_ends_the_connection() {
    let authority = Authority::new();
    let identity = authority.identity(&["db.test"]);
    let (never, stuffed) = (database(&identity, b"N"), database(&identity, b"Sx"));
    let listener = json!({"sni": {"never.test": "never", "stuffed.test": "stuffed"}, "starttls": "postgres"});
    let Some(proxy) = setup(listener, &[("never", &never), ("stuffed", &stuffed)]).start() else { return };
    let client = Arc::new(authority.client());
    for name in ["never.test", "stuffed.test"] {
        let mut wire = proxy.connect();
        wire.send(SSL_REQUEST);
        assert_eq!(wire.take(1), b"S");
        assert!(wire.secured(name, &client).is_err());
    }
    let records = proxy.records(2, "");
    assert!(records.iter().all(|record| record["reason"] == "starttls_refused"), "{records:?}");
    let mut plain = proxy.connect();
    plain.send([0, 0, 0, 9, 0, 3, 0, 0, 0]);
    plain.expect_end();
    let mut again = proxy.connect();
    again.send([GSSENC_REQUEST, GSSENC_REQUEST].concat());
    assert_eq!(again.rest().0, b"N");
    let records = proxy.records(4, "");
    assert!(records[2..].iter().all(|record| record["reason"] == "not_tls"), "{records:?}");
}

#[test]
fn a_drain_closes_silent_connections_and_waits_for_tunnels() {
    let authority = Authority::new();
    let one = origin(&authority.identity(&["one.test"]), "one");
    let Some(mut proxy) = setup(json!({"cluster": "one"}), &[("one", &one)]).start() else { return };
    let mut silent = proxy.connect();
    let mut busy = Wire::connect_tls(proxy.address(), "one.test", &Arc::new(authority.client())).unwrap();
    assert_eq!(busy.take(3), b"one");
    proxy.signal(nix::sys::signal::Signal::SIGTERM);
    silent.expect_end();
    busy.send("still here");
    busy.finish();
    assert_eq!(busy.rest(), (b"still here".to_vec(), true));
    assert!(proxy.wait().success());
}
