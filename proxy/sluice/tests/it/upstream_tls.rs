//! TLS to endpoints: verification, its log messages, and that everything else works as without TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use data_encoding::BASE64;
use rcgen::date_time_ymd;
use serde_json::{Value, json};

use crate::support::{Authority, Identity, Message, Origin, Proxy, Setup, assert_same, ok, pattern, poll};

/// A proxy in front of one origin, with this authority as its trusted CA.
fn setup(origin: &Origin, authority: &Authority, tls: Value) -> Setup {
    let setup = Setup::to_origin(origin);
    let file = setup.file("ca.pem", &authority.pem());
    let mut tls = tls;
    if tls.get("danger_skip_verification").is_none() {
        tls["ca_file"] = json!(file);
    }
    setup.with("clusters.default.tls", tls)
}

fn at_loopback(authority: &Authority) -> Identity {
    authority.identity(&["127.0.0.1", "localhost"])
}

fn reason(proxy: &Proxy, target: &str) -> (u16, String) {
    let answer = proxy.get(target);
    (answer.status(), answer.get("x-sluice-reason").unwrap_or("-").to_owned())
}

#[test]
fn requests_and_responses_are_the_same_as_without_tls() {
    let authority = Authority::new();
    let origin = Origin::answering_tls(at_loopback(&authority).server(), |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        ok(&format!("{} {:?} {body}", request.line, request.get("x-forwarded-proto")))
    });
    let Some(proxy) = setup(&origin, &authority, json!({})).start() else { return };
    let mut client = proxy.connect();
    for count in 0..3 {
        let answer =
            client.ask(format!("POST /{count} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"));
        assert_eq!(answer.text(), format!("POST /{count} HTTP/1.1 Some(\"http\") body"));
    }
    assert_eq!(origin.connections(), 1, "the connection is reused");
    let record = proxy.record("/0");
    assert!(record["connect_ms"].as_f64() > Some(0.0) && record["reason"].is_null(), "{record}");
    assert!(proxy.record("/2")["connect_ms"].is_null());
    // An application with kernel TLS would miss joined bytes, so these connections are never joined.
    assert_eq!(proxy.record("/2")["path"], "copy");
}

#[test]
fn unverified_endpoints_get_no_request_and_are_logged() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let expired =
        authority.changed_identity(&["127.0.0.1"], |params| params.not_after = date_time_ymd(2020, 1, 1));
    let cases = [
        (expired, "tls_certificate_expired"),
        (stranger.identity(&["127.0.0.1"]), "tls_unknown_issuer"),
        (authority.identity(&["other.test"]), "tls_name_mismatch"),
    ];
    for (identity, expected) in cases {
        let origin = Origin::answering_tls(identity.server(), |_| ok("no"));
        let Some(proxy) = setup(&origin, &authority, json!({})).start() else { return };
        assert_eq!(reason(&proxy, "/"), (502, expected.to_owned()));
        assert_eq!(proxy.outcome("/").1, expected);
        let line = proxy.line("the TLS handshake with an endpoint failed");
        assert_eq!(
            (&line["cluster"], &line["endpoint"]),
            (&"default".into(), &origin.endpoint.as_str().into())
        );
        assert_eq!(proxy.endpoint(&origin.endpoint)["failures"], 1);
        assert_eq!(origin.requests().len(), 0);
    }
}

#[test]
fn other_server_names_can_be_configured() {
    let authority = Authority::new();
    let names = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&names);
    let origin =
        Origin::playing_tls(authority.identity(&["inner.test", "localhost"]).server(), move |mut peer| {
            let name = peer.secure().and_then(|session| session.server_name()).map(str::to_owned);
            seen.lock().unwrap().push(name);
            while peer.next().is_some() {
                peer.send(ok("yes"));
            }
        });
    let Some(proxy) = setup(&origin, &authority, json!({"server_name": "inner.test"})).start() else {
        return;
    };
    assert_eq!(proxy.get("/").text(), "yes");
    let port = origin.endpoint.rsplit_once(':').unwrap().1;
    let setup = setup(&origin, &authority, json!({}));
    let setup = setup.with("clusters.default.endpoints", json!([format!("https://localhost:{port}")]));
    let Some(proxy) = setup.start() else { return };
    // The origin listens on only one of localhost's addresses.
    poll("the address that answers", || (proxy.get("/").status() == 200).then_some(()));
    let names = names.lock().unwrap().clone();
    assert_eq!(names, [Some("inner.test".to_owned()), Some("localhost".to_owned())]);
}

#[test]
fn pins_are_checked_with_or_without_cas() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (good, own) = (at_loopback(&authority), at_loopback(&stranger));
    let pin = |hash: &[u8; 32]| json!([BASE64.encode(hash)]);
    let other = pin(&[7; 32]);
    let cases = [
        (&good, json!({"pinned_sha256": pin(&good.key_sha256)}), "-"),
        (&good, json!({"pinned_sha256": pin(&good.cert_sha256)}), "-"),
        (&good, json!({"pinned_sha256": other}), "tls_pin_mismatch"),
        (&own, json!({"pinned_sha256": pin(&own.key_sha256)}), "tls_unknown_issuer"),
        (&own, json!({"danger_skip_verification": true, "pinned_sha256": pin(&own.key_sha256)}), "-"),
        (&own, json!({"danger_skip_verification": true, "pinned_sha256": other}), "tls_pin_mismatch"),
        (&own, json!({"danger_skip_verification": true}), "-"),
    ];
    for (identity, tls, expected) in cases {
        let origin = Origin::answering_tls(identity.server(), |_| ok("yes"));
        let skips = tls.get("danger_skip_verification").is_some();
        let Some(proxy) = setup(&origin, &authority, tls.clone()).start() else { return };
        let status = if expected == "-" { 200 } else { 502 };
        assert_eq!(reason(&proxy, "/"), (status, expected.to_owned()), "{tls}");
        assert_eq!(proxy.said("certificates of endpoints are not verified") > 0, skips, "{tls}");
    }
}

#[test]
fn the_client_certificate_is_sent_on_request() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = at_loopback(&authority);
    let origin = Origin::answering_tls(authority.server_for_members(&server), |_| ok("welcome"));
    let shown = |identity: &Identity| {
        let setup = setup(&origin, &authority, json!({}));
        let cert = setup.file("cert.pem", &identity.cert_pem);
        let key = setup.file("key.pem", &identity.key_pem);
        setup.with("clusters.default.tls.client_certificate", json!({"cert": cert, "key": key}))
    };
    let Some(proxy) = shown(&authority.identity(&["client.test"])).start() else { return };
    assert_eq!(proxy.get("/").text(), "welcome");
    for setup in [setup(&origin, &authority, json!({})), shown(&stranger.identity(&["client.test"]))] {
        let Some(proxy) = setup.start() else { return };
        assert_eq!(reason(&proxy, "/"), (502, "tls_handshake_failed".to_owned()));
        proxy.line("the TLS handshake with an endpoint failed");
    }
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn versions_below_the_minimum_are_refused() {
    let authority = Authority::new();
    let origin = Origin::answering_tls(at_loopback(&authority).server_up_to_12(), |_| ok("old"));
    let Some(proxy) = setup(&origin, &authority, json!({})).start() else { return };
    assert_eq!(proxy.get("/").text(), "old");
    let Some(proxy) = setup(&origin, &authority, json!({"min_version": "1.3"})).start() else { return };
    assert_eq!(reason(&proxy, "/"), (502, "tls_handshake_failed".to_owned()));
}

#[test]
fn sessions_are_resumed_by_all_workers() {
    let authority = Authority::new();
    let resumed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&resumed);
    let origin = Origin::playing_tls(at_loopback(&authority).server(), move |mut peer| {
        if peer.secure().is_some_and(|session| session.was_resumed()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        while peer.next().is_some() {
            peer.send(ok("yes"));
        }
    });
    let setup = setup(&origin, &authority, json!({})).with("workers", 2);
    let setup = setup.with("clusters.default.pool", json!({"idle_max_per_endpoint": 0}));
    let Some(proxy) = setup.start() else { return };
    for _ in 0..12 {
        assert_eq!(proxy.get("/").text(), "yes");
    }
    assert_eq!(origin.connections(), 12);
    // The first session of each worker is new; tickets arrive after the handshake, so a second one may be new too.
    let resumed = resumed.load(Ordering::Relaxed);
    assert!(resumed >= 9, "{resumed} of 12");
    let counted =
        |kind: &str| proxy.metric(&format!("sluice_upstream_tls_handshakes_total{{kind=\"{kind}\"}}"));
    assert_eq!((counted("resumed"), counted("full")), (resumed as f64, 12.0 - resumed as f64));
}

fn swallow(request: &Message) -> Vec<u8> {
    match request.target() {
        "/up" => ok(&request.body.len().to_string()),
        _ => [b"HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\n\r\n".to_vec(), pattern(5_000_000)].concat(),
    }
}

#[test]
fn long_bodies_are_unchanged() {
    let authority = Authority::new();
    let origin = Origin::answering_tls(at_loopback(&authority).server(), swallow);
    let Some(proxy) = setup(&origin, &authority, json!({})).start() else { return };
    let body = pattern(5_000_000);
    let head = format!("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
    assert_eq!(proxy.ask([head.as_bytes(), &body].concat()).text(), "5000000");
    assert_same(&origin.last().body, &body);
    assert_same(&proxy.get("/down").body, &body);
    let mut chunks = b"POST /up HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for piece in body.chunks(70_000) {
        chunks.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunks.extend_from_slice(piece);
        chunks.extend_from_slice(b"\r\n");
    }
    chunks.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(proxy.ask(chunks).text(), "5000000");
    assert_same(&origin.last().body, &body);
}

#[test]
fn a_missing_close_notify_is_a_truncation() {
    let authority = Authority::new();
    let origin = Origin::playing_tls(at_loopback(&authority).server(), |mut peer| {
        let request = peer.next().unwrap();
        peer.send("HTTP/1.1 200 OK\r\n\r\nsome of it");
        // Dropping the socket closes the connection, but not the session.
        if request.target() == "/whole" {
            peer.finish();
        }
    });
    let Some(proxy) = setup(&origin, &authority, json!({})).start() else { return };
    assert_eq!(proxy.get("/whole").text(), "some of it");
    let mut client = proxy.connect();
    client.send("GET /cut HTTP/1.0\r\n\r\n");
    client.head();
    assert_eq!(
        client.rest(),
        (b"some of it".to_vec(), false),
        "a reset, because nothing else would show the cut"
    );
    assert_eq!(proxy.outcome("/cut").1, "response_truncated");
}

#[test]
fn an_origin_that_closes_is_retried() {
    let authority = Authority::new();
    let origin = Origin::playing_tls(at_loopback(&authority).server(), |mut peer| {
        peer.next();
        peer.send(ok("once"));
        // It accepts another one, and ends.
        peer.next();
        peer.finish();
    });
    let Some(proxy) = setup(&origin, &authority, json!({})).start() else { return };
    let mut client = proxy.connect();
    for _ in 0..4 {
        assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "once");
    }
    let retries: u64 = proxy.records(4, "/").iter().map(|record| record["retries"].as_u64().unwrap()).sum();
    assert_eq!((retries, origin.connections()), (3, 4));
}

#[test]
fn health_checks_use_tls() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let good = Origin::answering_tls(at_loopback(&authority).server(), |_| ok("good"));
    let bad = Origin::answering_tls(at_loopback(&stranger).server(), |_| ok("bad"));
    let setup = setup(&good, &authority, json!({}))
        .with("clusters.default.endpoints", json!([good.endpoint, bad.endpoint]))
        .with(
            "clusters.default.health_check",
            json!({"interval_ms": 2000, "unhealthy_after": 1, "path": "/up"}),
        );
    let Some(proxy) = setup.start() else { return };
    let is = |origin: &Origin, health: &str| proxy.endpoint(&origin.endpoint)["health"] == health;
    poll("both verdicts", || (is(&bad, "unhealthy") && is(&good, "healthy")).then_some(()));
    let line = proxy.line("endpoint is unhealthy");
    assert!(line["reason"].as_str().unwrap().contains("UnknownIssuer"), "{line}");
    assert_eq!(good.last().target(), "/up");
    for _ in 0..4 {
        assert_eq!(proxy.get("/").text(), "good");
    }
}

#[test]
fn limited_endpoints_keep_connections_per_worker() {
    let authority = Authority::new();
    let origin = Origin::answering_tls(at_loopback(&authority).server(), |_| ok("yes"));
    let setup = setup(&origin, &authority, json!({})).with("workers", 2);
    let Some(proxy) = setup.with("clusters.default.max_in_flight", 2).start() else { return };
    let mut client = proxy.connect();
    for _ in 0..5 {
        assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "yes");
    }
    assert_eq!(origin.connections(), 1);
    // The client gets its response a moment before the endpoint's slot is free.
    poll("nothing in flight", || (proxy.endpoint(&origin.endpoint)["in_flight"] == 0).then_some(()));
}

#[test]
fn tunnels_use_tls_too() {
    let authority = Authority::new();
    let origin = Origin::playing_tls(at_loopback(&authority).server(), |mut peer| {
        let (all, clean) = peer.rest();
        assert!(clean);
        peer.send([b"got ", &all[..]].concat());
        peer.finish();
    });
    let setup = setup(&origin, &authority, json!({}));
    let setup = setup.with("listeners.0.protocol", "tcp").with("listeners.0.cluster", "default");
    let Some(proxy) = setup.start() else { return };
    let mut client = proxy.connect();
    client.send("hello");
    client.finish();
    assert_eq!(client.rest(), (b"got hello".to_vec(), true));
    assert_eq!(proxy.record("")["reason"], Value::Null);
}

#[test]
fn websockets_use_tls_too() {
    let authority = Authority::new();
    let origin = Origin::playing_tls(at_loopback(&authority).server(), |mut peer| {
        peer.next().unwrap();
        peer.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nwelcome",
        );
        assert_eq!(peer.take(5), b"hello");
        peer.send("bye");
        peer.finish();
        peer.rest();
    });
    let Some(proxy) = setup(&origin, &authority, json!({})).start() else { return };
    let mut client = proxy.connect();
    client.send("GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.head().status(), 101);
    assert_eq!(client.take(7), b"welcome");
    client.send("hello");
    assert_eq!(client.take(3), b"bye");
    client.finish();
    client.expect_end();
    assert_eq!(proxy.record("/ws")["status"], 101);
}

#[test]
fn an_incomplete_upstream_handshake_times_out() {
    let authority = Authority::new();
    let origin = Origin::playing(|mut peer| {
        peer.rest();
    });
    let setup = setup(&origin, &authority, json!({})).with("clusters.default.connect_timeout_ms", 50);
    let Some(proxy) = setup.start() else { return };
    assert_eq!(reason(&proxy, "/"), (504, "connect_timeout".to_owned()));
    // An endpoint without TLS.
    let origin = Origin::playing(|mut peer| peer.send("220 ready\r\n"));
    let Some(proxy) = self::setup(&origin, &authority, json!({})).start() else { return };
    assert_eq!(reason(&proxy, "/"), (502, "tls_handshake_failed".to_owned()));
}

#[test]
fn a_reload_reads_certificate_files_again() {
    let (old, new) = (Authority::new(), Authority::new());
    let origin = Origin::answering_tls(at_loopback(&new).server(), |_| ok("yes"));
    let Some(proxy) = setup(&origin, &old, json!({})).start() else { return };
    assert_eq!(reason(&proxy, "/").1, "tls_unknown_issuer");
    let file = proxy.folder.join("ca.pem");
    std::fs::write(&file, "no PEM").unwrap();
    let (code, said) = proxy.reload(&proxy.config);
    assert!(
        code != Some(0) && said.contains("clusters.default.tls.ca_file") && said.contains("ca.pem"),
        "{said}"
    );
    std::fs::write(&file, new.pem()).unwrap();
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    assert_eq!(proxy.get("/").text(), "yes");
}

#[test]
fn invalid_files_are_reported_at_startup() {
    let (authority, other) = (Authority::new(), Authority::new());
    let origin = Origin::saying("");
    let identity = authority.identity(&["a.test"]);
    let cases = [
        ("ca_file", "nothing", "contains no certificate in PEM format"),
        ("client_certificate.cert", &identity.key_pem, "contains no certificate in PEM format"),
        ("client_certificate.key", &identity.cert_pem, "contains no unencrypted key in PEM format"),
        ("client_certificate.key", &other.identity(&["a.test"]).key_pem, "the key does not match cert"),
    ];
    for (key, content, expected) in cases {
        let setup = setup(&origin, &authority, json!({}));
        let (cert, key_file) =
            (setup.file("cert.pem", &identity.cert_pem), setup.file("key.pem", &identity.key_pem));
        let setup =
            setup.with("clusters.default.tls.client_certificate", json!({"cert": cert, "key": key_file}));
        let file = setup.file("wrong.pem", content);
        let (code, said) = setup.with(&format!("clusters.default.tls.{key}"), json!(file)).fails();
        assert!(said.contains(&format!("clusters.default.tls.{key}: ")) && said.contains(expected), "{said}");
        assert_eq!(code, Some(1));
    }
    let (code, said) =
        setup(&origin, &authority, json!({"client_certificate": {"cert": "/none", "key": "/none"}})).fails();
    assert!(code == Some(2) && said.contains("client_certificate.cert: /none does not exist"), "{said}");
}
