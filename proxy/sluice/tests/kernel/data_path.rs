//! The binary with bypass: which exchanges use joined connections, and what ends that.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use nix::sys::signal::Signal;

use crate::proxy_support::{Origin, Proxy, Setup, Wire, assert_same, ok, pattern, poll};

fn setup(origin: &Origin) -> Setup {
    Setup::to_origin(origin).with("kernel.bypass", "required")
}

fn start(setup: Setup) -> Proxy {
    setup.start().expect("io_uring")
}

fn path_of(proxy: &Proxy, target: &str) -> String {
    proxy.record(target)["path"].as_str().unwrap().to_owned()
}

fn post(target: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[test]
#[ignore = "needs root and BPF"]
fn only_complete_requests_that_fit_are_joined() {
    let origin = Origin::answering(|request| ok(&request.body.len().to_string()));
    let proxy = start(setup(&origin).with("kernel.bypass_budget_bytes", 4096));
    assert_eq!(proxy.get("/get").text(), "0");
    assert_eq!(proxy.ask(post("/fits", &[1; 1000])).text(), "1000");
    assert_eq!(proxy.ask(post("/large", &[1; 5000])).text(), "5000");
    let chunked = "POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut wire = proxy.connect();
    wire.send(chunked);
    let reused = || proxy.metric("sluice_upstream_connections_reused_total");
    poll("the head to be forwarded", || (reused() == 2.0).then_some(()));
    assert_eq!(wire.ask("3\r\nabc\r\n0\r\n\r\n").text(), "3");
    let paths = ["/get", "/fits", "/large", "/chunked"].map(|target| path_of(&proxy, target));
    assert_eq!(paths, ["bypass", "bypass", "copy", "copy"]);
    // One of each kind: they have separate pools.
    assert_eq!(origin.connections(), 2);
    assert_eq!(proxy.metric("sluice_bypass_pairs_joined_total"), 1.0);
    assert_eq!(proxy.metric("sluice_path_exchanges_total{path=\"bypass\"}"), 2.0);
    assert_eq!(proxy.metric("sluice_path_exchanges_total{path=\"copy\"}"), 2.0);
    assert!(proxy.metric("sluice_bypass_bytes_total{by=\"joined\"}") > 1000.0);
}

#[test]
#[ignore = "needs root and BPF"]
fn a_large_response_to_a_slow_client_is_complete() {
    let body = pattern(3_000_000);
    let answer =
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let origin = Origin::answering(move |_| answer.clone());
    let proxy = start(setup(&origin));
    let mut wire = proxy.connect();
    for _ in 0..3 {
        wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        poll("the budget to overflow", || {
            let overflows = proxy.metric("sluice_bypass_fallbacks_total{reason=\"byte_budget\"}")
                + proxy.metric("sluice_bypass_fallbacks_total{reason=\"tcp_unread\"}");
            (overflows > 0.0).then_some(())
        });
        assert_same(&wire.response().body, &body);
    }
    assert_eq!(path_of(&proxy, "/"), "bypass");
    assert_eq!(origin.connections(), 1);
}

#[test]
#[ignore = "needs root and BPF"]
fn bypass_can_be_disabled_for_an_endpoint() {
    let (one, other) = (Origin::saying("one"), Origin::saying("other"));
    let endpoints = serde_json::json!([one.endpoint, {"address": other.endpoint, "bypass": "off"}]);
    let setup = setup(&one).with("clusters.default.endpoints", endpoints);
    let proxy = start(setup.with("clusters.default.balance", "round_robin"));
    for target in ["/a", "/b"] {
        let answer = proxy.get(target);
        let path = if answer.text() == "one" { "bypass" } else { "copy" };
        assert_eq!(path_of(&proxy, target), path, "{}", answer.text());
    }
}

/// The map is full; a further connection is replaced by an ordinary one, and the request is served.
#[test]
#[ignore = "needs root and BPF"]
fn connections_beyond_the_maximum_are_not_joined() {
    const MAX: u32 = 64;
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let origin = Origin::answering(move |request| {
        if request.target() == "/held" {
            held.lock().unwrap().recv().unwrap();
        }
        ok("hi")
    });
    let proxy = start(setup(&origin).with("kernel.bypass_connections_max", MAX));
    // From then on it is known to read joined bytes.
    assert_eq!(proxy.get("/known").text(), "hi");
    let mut first: Vec<_> = (0..MAX).map(|_| proxy.connect()).collect();
    for wire in &mut first {
        wire.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    poll("they are joined", || (proxy.metric("sluice_bypass_pairs") == f64::from(MAX)).then_some(()));
    assert_eq!(proxy.get("/more").text(), "hi");
    first.iter().for_each(|_| release.send(()).unwrap());
    for wire in &mut first {
        assert_eq!(wire.response().text(), "hi");
    }
    assert_eq!((path_of(&proxy, "/held"), path_of(&proxy, "/more")), ("bypass".into(), "copy".into()));
    assert_eq!(proxy.metric("sluice_bypass_refused_total{reason=\"incomplete\"}"), 1.0);
}

/// An application that is known to read joined bytes, and then accepts a connection that it never reads.
#[test]
#[ignore = "needs root and BPF"]
fn an_application_that_does_not_read_is_not_joined_for_a_while() {
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let origin = Origin::playing(move |mut peer| {
        if peer.index == 1 {
            held.lock().unwrap().recv().unwrap();
            return;
        }
        if peer.next().is_some() {
            peer.send(ok("hi"));
        }
        if peer.index > 1 {
            while peer.next().is_some() {
                peer.send(ok("hi"));
            }
        }
    });
    let setup = setup(&origin).with("kernel.bypass_stall_ms", 100);
    let proxy = start(setup.with("clusters.default.response_timeout_ms", 3000));
    assert_eq!(proxy.get("/known").text(), "hi");
    assert_eq!(proxy.get("/stuck").status(), 504);
    let line = proxy
        .line("this endpoint does not read bytes that bypass loopback TCP; its requests use TCP for a while");
    assert_eq!((&line["endpoint"], &line["pause_s"]), (&origin.endpoint.as_str().into(), &10.into()));
    assert_eq!(proxy.get("/next").text(), "hi");
    let paths = ["/known", "/stuck", "/next"].map(|target| path_of(&proxy, target));
    assert_eq!(paths, ["bypass", "bypass", "copy"]);
    assert_eq!(proxy.metric("sluice_bypass_refused_total{reason=\"stalled\"}"), 1.0);
    assert_eq!(proxy.said("this endpoint does not read"), 1);
    release.send(()).unwrap();
}

#[test]
#[ignore = "needs root and BPF"]
fn a_drain_closes_joined_connections_in_order() {
    let (release, held) = channel::<()>();
    let held = Mutex::new(held);
    let body = pattern(500_000);
    let answer =
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let origin = Origin::answering(move |_| {
        held.lock().unwrap().recv().unwrap();
        answer.clone()
    });
    let mut proxy = start(setup(&origin));
    let mut wire = proxy.connect();
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    poll("it is joined", || (proxy.metric("sluice_bypass_pairs") == 1.0).then_some(()));
    proxy.signal(Signal::SIGTERM);
    proxy.wait_for("draining");
    release.send(()).unwrap();
    assert_same(&wire.response().body, &body);
    assert!(proxy.wait().success());
}

/// Clients of this host are joined if this is enabled.
#[test]
#[ignore = "needs root and BPF"]
fn clients_are_joined_if_enabled() {
    let body = pattern(300_000);
    let answer =
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let origin = Origin::answering(move |_| answer.clone());
    let proxy = start(setup(&origin).with("kernel.bypass_downstream", "on"));
    let mut wire = proxy.connect();
    for _ in 0..5 {
        assert_same(&wire.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").body, &body);
    }
    assert_eq!(proxy.metric("sluice_bypass_pairs_joined_total"), 2.0);
    // Pipelined, and cut into pieces.
    for piece in b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n".chunks(7) {
        wire.send(piece);
    }
    assert_same(&wire.response().body, &body);
    assert_same(&wire.response().body, &body);
}

/// `drop_to` switches the user after the programs are loaded; they still work for that user.
#[test]
#[ignore = "needs root and BPF"]
fn bypass_works_for_an_unprivileged_user() {
    let origin = Origin::saying("hi");
    // The folder belongs to root, so the user has no files in it.
    let setup = setup(&origin).with("user", "nobody").with("access_log", "off").with("admin", "127.0.0.1:0");
    let proxy = start(setup);
    for _ in 0..3 {
        assert_eq!(proxy.get("/").text(), "hi");
    }
    let address: SocketAddr = proxy.admin_address().parse().unwrap();
    let page = Wire::connect(address).ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(page.text().contains("\nsluice_bypass_pairs_joined_total 1\n"), "{}", page.text());
}
