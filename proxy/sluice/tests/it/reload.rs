//! A new configuration is applied while requests are running.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::support::{Dead, Origin, Proxy, Setup, Wire, free_port, ok, poll};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const IN_FORCE: (Option<i32>, &str) = (Some(0), "configuration applied\n");

/// The configuration of a proxy, with one key changed.
fn changed(proxy: &Proxy, path: &str, value: impl Into<Value>) -> Value {
    let mut config = proxy.config.clone();
    *path.split('.').fold(&mut config, |place, key| match key.parse::<usize>() {
        Ok(index) => &mut place[index],
        Err(_) => &mut place[key],
    }) = value.into();
    config
}

fn reload(proxy: &Proxy, config: &Value) {
    let (code, said) = proxy.reload(config);
    assert_eq!((code, said.as_str()), IN_FORCE);
}

/// An address whose port no other test has on another address of loopback, which a listener on all would collide with.
fn own_port() -> String {
    format!("127.0.0.1:{}", free_port())
}

#[test]
fn the_next_exchange_uses_the_new_file() {
    let (old, new) = (Origin::saying("old"), Origin::saying("new"));
    let Some(proxy) = Setup::to_origin(&old).start() else { return };
    let mut kept = proxy.connect();
    assert_eq!(kept.ask(GET).text(), "old");
    let mut config = changed(&proxy, "clusters.default.endpoints", json!([new.endpoint]));
    config["routes"] = json!([
        {"name": "gone", "path_prefix": "/gone", "respond": {"status": 410, "body": "gone"}},
        {"name": "rest", "cluster": "default"},
    ]);
    reload(&proxy, &config);
    assert_eq!(kept.ask(GET).text(), "new", "the connection is kept");
    assert_eq!(kept.ask("GET /gone HTTP/1.1\r\nHost: a\r\n\r\n").status(), 410);
    assert_eq!(proxy.record("/gone")["route"], "gone");
    let shown: Value = serde_json::from_slice(&proxy.admin("/config").body).unwrap();
    assert_eq!(shown["routes"][0]["name"], "gone");
}

#[test]
fn a_running_exchange_finishes_under_the_old_file() {
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let old = Origin::answering(move |_| {
        gate.lock().unwrap().recv().unwrap();
        ok("old")
    });
    let new = Origin::saying("new");
    let Some(proxy) = Setup::to_origin(&old).start() else { return };
    let mut client = proxy.connect();
    client.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n");
    poll("the request", || (!old.requests().is_empty()).then_some(()));
    let mut config = proxy.config.clone();
    config["clusters"] = json!({"other": {"endpoints": [new.endpoint]}});
    config["routes"] = json!([{"name": "other", "cluster": "other"}]);
    reload(&proxy, &config);
    assert_eq!(proxy.get("/").text(), "new");
    go.send(()).unwrap();
    assert_eq!(client.response().text(), "old");
    let record = proxy.record("/busy");
    assert_eq!((&record["route"], &record["cluster"]), (&json!("default"), &json!("default")));
    assert_eq!(client.ask(GET).text(), "new");
}

#[test]
fn unchanged_endpoints_keep_their_state() {
    let origin = Origin::saying("here");
    let refusing = Dead::new();
    let dead = refusing.endpoint();
    let Some(proxy) = Setup::to(&[&origin.endpoint, &dead])
        .with("clusters.default.health_check", json!({"path": "/", "interval_ms": 50, "unhealthy_after": 1}))
        .start()
    else {
        return;
    };
    poll("the dead one to be found", || (proxy.endpoint(&dead)["health"] == "unhealthy").then_some(()));
    let mut client = proxy.connect();
    assert_eq!(client.ask(GET).text(), "here");
    let served = || proxy.metric("sluice_upstream_connections_opened_total");
    let (requests, opened) = (proxy.endpoint(&origin.endpoint)["requests"].clone(), served());
    // Another key of the cluster, and another weight.
    let mut config = changed(&proxy, "clusters.default.response_timeout_ms", 1234);
    config["clusters"]["default"]["endpoints"] =
        json!([{"address": origin.endpoint, "weight": 7}, {"address": dead}]);
    reload(&proxy, &config);
    let endpoint = proxy.endpoint(&origin.endpoint);
    assert_eq!((&endpoint["requests"], &endpoint["weight"]), (&requests, &json!(7)));
    assert_eq!(proxy.endpoint(&dead)["health"], "unhealthy", "before it is checked again");
    assert_eq!(client.ask(GET).text(), "here");
    assert_eq!(served(), opened, "the idle connection is used");
    // Without checks it would never become healthy again.
    reload(&proxy, &changed(&proxy, "clusters.default.health_check", "off"));
    assert_eq!(proxy.endpoint(&dead)["health"], "unchecked");
}

#[test]
fn reload_with_mistake_changes_nothing() {
    let origin = Origin::saying("here");
    let Some(mut proxy) = Setup::to_origin(&origin).start() else { return };
    let (code, said) = proxy.reload("listeners: [{address: nowhere}]\nclusters: {a: {endpoints: []}}\n");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(":1: listeners[0].address: \"nowhere\" has no port"), "{said}");
    assert!(said.contains("clusters.a.endpoints"), "all mistakes at once: {said}");
    // A valid one, whose address cannot be bound.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut config = changed(&proxy, "clusters.default.endpoints", json!(["127.0.0.1:1"]));
    config["listeners"].as_array_mut().unwrap().push(json!({"name": "more", "address": address}));
    let (code, said) = proxy.reload(&config);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&format!("listener more cannot listen on {address}")), "{said}");
    assert_eq!(proxy.get("/").text(), "here");
    assert!(proxy.is_running());
}

#[test]
fn listeners_are_added_and_removed() {
    let origin = Origin::saying("here");
    let Some(proxy) = Setup::to_origin(&origin).with("workers", 2).start() else { return };
    let socket = proxy.folder.join("more.sock");
    let mut idle = proxy.connect();
    assert_eq!(idle.ask(GET).status(), 200);
    let mut both = proxy.config.clone();
    let listeners = both["listeners"].as_array_mut().unwrap();
    listeners.push(json!({"name": "more", "address": "127.0.0.1:0"}));
    listeners.push(json!({"name": "unix", "address": format!("unix:{}", socket.display())}));
    reload(&proxy, &both);
    let more = proxy.added("more");
    for _ in 0..8 {
        assert_eq!(Wire::connect(more).ask(GET).text(), "here", "by either worker");
    }
    assert_eq!(Wire::connect_unix(&socket).ask(GET).text(), "here");
    assert_eq!(idle.ask(GET).text(), "here", "unchanged listeners keep their connections");
    // The first one is removed.
    both["listeners"].as_array_mut().unwrap().remove(0);
    reload(&proxy, &both);
    idle.expect_end();
    poll("the address", || TcpListener::bind(proxy.address()).ok());
    assert_eq!(Wire::connect(more).ask(GET).text(), "here");
    both["listeners"].as_array_mut().unwrap().pop();
    reload(&proxy, &both);
    assert!(!socket.exists());
}

#[test]
fn a_wider_address_replaces_a_narrower_one() {
    let origin = Origin::saying("here");
    let Some(proxy) = Setup::to_origin(&origin).with("listeners.0.address", own_port()).start() else {
        return;
    };
    let port = proxy.address().port();
    let wide = changed(&proxy, "listeners.0.address", format!("0.0.0.0:{port}"));
    reload(&proxy, &wide);
    assert_eq!(proxy.get("/").text(), "here");
}

#[test]
fn a_change_of_address_resets_no_connection() {
    let origin = Origin::saying("here");
    let setup = Setup::to_origin(&origin).with("workers", 2);
    let Some(proxy) = setup.with("listeners.0.address", own_port()).start() else { return };
    let (here, over) = (proxy.address(), AtomicBool::new(false));
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut asked = 0;
            while !over.load(Ordering::Acquire) {
                assert_eq!(Wire::connect(here).ask(GET).text(), "here");
                asked += 1;
            }
            asked
        });
        for _ in 0..5 {
            for ip in ["0.0.0.0", "127.0.0.1"] {
                let address = format!("{ip}:{}", here.port());
                reload(&proxy, &changed(&proxy, "listeners.0.address", address));
            }
        }
        over.store(true, Ordering::Release);
        assert!(client.join().unwrap() > 0);
    });
}

#[test]
fn listener_limits_apply_to_new_connections() {
    let origin = Origin::saying("here");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut before = proxy.connect();
    assert_eq!(before.ask(GET).status(), 200);
    reload(&proxy, &changed(&proxy, "limits", json!({"target_bytes_max": 64})));
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(64));
    assert_eq!(proxy.ask(&long).status(), 414);
    assert_eq!(before.ask(&long).status(), 200);
}

#[test]
fn fixed_keys_are_reported() {
    let origin = Origin::saying("here");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut config = changed(&proxy, "workers", 3);
    config["via"] = json!(true);
    let (code, said) = proxy.reload(&config);
    assert_eq!(code, Some(0));
    assert!(said.contains("sluice: workers: the new value requires a restart\n"), "{said}");
    proxy.get("/");
    assert!(origin.last().get("via").is_some(), "the rest is applied");
}

#[test]
fn sighup_and_watch_reload() {
    let origin = Origin::saying("here");
    let Some(proxy) = Setup::to_origin(&origin).argument("--watch").start() else { return };
    let respond = |body: &str| {
        let mut config = proxy.config.clone();
        config["routes"] = json!([{"name": "own", "respond": {"status": 200, "body": body}}]);
        config
    };
    proxy.rewrite(respond("hangup"));
    proxy.signal(Signal::SIGHUP);
    poll("the hangup", || (proxy.get("/").text() == "hangup").then_some(()));
    proxy.rewrite(respond("watched"));
    poll("the watch", || (proxy.get("/").text() == "watched").then_some(()));
    proxy.rewrite("nonsense");
    proxy.wait_for("configuration refused");
    assert_eq!(proxy.get("/").text(), "watched");
}

#[test]
fn the_control_socket_is_only_for_its_owner() {
    let origin = Origin::saying("here");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mode = std::fs::metadata(proxy.folder.join("control.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut wire = Wire::connect_unix(&proxy.folder.join("control.sock"));
    assert_eq!(wire.ask("GET /v1/reload HTTP/1.1\r\nHost: a\r\n\r\n").status(), 405);
}

/// Rounds of the test below; each reloads twice, once a broken file.
const ROUNDS: u64 = 100;

#[test]
fn reloads_under_load_cost_no_request() {
    let origins = [Origin::saying("one"), Origin::saying("two")];
    let Some(proxy) = Setup::to_origin(&origins[0]).with("workers", 2).start() else { return };
    let (ended, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let ask = |kept: bool| {
        let mut wire = proxy.connect();
        while !ended.load(Ordering::Relaxed) {
            if !kept {
                wire = proxy.connect();
            }
            assert_eq!(wire.ask(GET).status(), 200);
            asked.fetch_add(1, Ordering::Relaxed);
        }
    };
    let memory = std::thread::scope(|scope| {
        for kept in [true, true, false] {
            scope.spawn(move || ask(kept));
        }
        let mut memory = Vec::new();
        for round in 0..ROUNDS {
            let origin = &origins[round as usize % 2].endpoint;
            reload(&proxy, &changed(&proxy, "clusters.default.endpoints", json!([origin])));
            assert_eq!(proxy.reload("clusters: {}").0, Some(2));
            memory.push(proxy.memory_kb());
        }
        ended.store(true, Ordering::Relaxed);
        memory
    });
    assert!(asked.load(Ordering::Relaxed) > ROUNDS);
    assert!(origins.iter().all(|origin| origin.requests().len() > 1), "each was applied");
    let (early, late) = (memory[memory.len() / 5], memory[memory.len() - 1]);
    assert!(late < early + early / 4, "memory is flat: {memory:?}");
}
