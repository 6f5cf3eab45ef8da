//! Which endpoint a request goes to, and which state of endpoints is kept.

use std::collections::HashMap;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Dead, Origin, Proxy, Setup, poll};

const NAMES: [&str; 3] = ["one", "two", "three"];

fn origins() -> [Origin; 3] {
    NAMES.map(Origin::saying)
}

fn setup(origins: &[Origin; 3], balance: serde_json::Value) -> Setup {
    Setup::to(&origins.each_ref().map(|origin| origin.endpoint.as_str()))
        .with("clusters.default.balance", balance)
}

/// How many of `count` requests with this field each origin served.
fn spread(proxy: &Proxy, count: usize, field: &str) -> HashMap<String, usize> {
    let mut spread = HashMap::new();
    for _ in 0..count {
        let answer = proxy.ask(format!("GET / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n"));
        *spread.entry(answer.text().to_owned()).or_default() += 1;
    }
    spread
}

#[test]
fn round_robin_alternates_by_weight() {
    let origins = origins();
    let Some(proxy) = setup(&origins, json!("round_robin")).start() else { return };
    assert_eq!(spread(&proxy, 9, "X: y"), NAMES.map(|name| (name.to_owned(), 3)).into());
    let endpoints = json!([
        {"address": origins[0].endpoint, "weight": 3},
        {"address": origins[1].endpoint},
    ]);
    let weighted = setup(&origins, json!("round_robin")).with("clusters.default.endpoints", endpoints);
    let Some(proxy) = weighted.start() else { return };
    assert_eq!(spread(&proxy, 8, "X: y"), [("one".to_owned(), 6), ("two".to_owned(), 2)].into());
}

#[test]
fn random_two_uses_every_endpoint() {
    let origins = origins();
    let Some(proxy) = setup(&origins, json!("random_two")).start() else { return };
    let mut seen = HashMap::new();
    poll("every endpoint to be picked", || {
        seen.extend(spread(&proxy, 1, "X: y"));
        (seen.len() == 3).then_some(())
    });
}

#[test]
fn a_hash_sends_the_same_key_to_the_same_endpoint() {
    let origins = origins();
    let cases = [
        (json!({"hash": {"header": "x-user"}}), "X-User: "),
        (json!({"hash": {"cookie": "session"}}), "Cookie: a=b; session="),
    ];
    for (balance, field) in cases {
        let Some(proxy) = setup(&origins, balance).start() else { return };
        let mut used = HashMap::new();
        for key in 0..30 {
            let spread = spread(&proxy, 2, &format!("{field}{key}"));
            assert_eq!(spread.len(), 1, "{field}{key}");
            used.extend(spread);
        }
        assert_eq!(used.len(), 3, "keys are spread over all");
    }
    let Some(proxy) = setup(&origins, json!({"hash": "client_address"})).start() else { return };
    assert_eq!(spread(&proxy, 5, "X: y").len(), 1);
}

#[test]
fn least_requests_avoids_a_busy_endpoint() {
    let slow = Origin::playing(|mut peer| {
        peer.next();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nha");
        peer.expect_end();
    });
    let fast = Origin::saying("fast");
    let Some(proxy) = Setup::to(&[&slow.endpoint, &fast.endpoint]).start() else { return };
    let mut waiting = proxy.connect();
    // Whichever is picked first, the slow endpoint then keeps the request it gets.
    poll("a request at the slow endpoint", || {
        waiting = proxy.connect();
        waiting.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let length = waiting.head().get("content-length").unwrap().to_owned();
        (length == "4" && waiting.take(2) == b"ha").then_some(())
    });
    assert_eq!(spread(&proxy, 10, "X: y"), [("fast".to_owned(), 10)].into());
    assert_eq!(proxy.endpoint(&slow.endpoint)["in_flight"], 1);
    waiting.reset();
    poll("the count to go down", || (proxy.endpoint(&slow.endpoint)["in_flight"] == 0).then_some(()));
}

#[test]
fn a_name_is_resolved() {
    let origin = Origin::saying("by name");
    let port = origin.endpoint.rsplit(':').next().unwrap();
    let Some(proxy) = Setup::to(&[&format!("localhost:{port}")]).start() else { return };
    assert_eq!(proxy.get("/").text(), "by name");
}

#[test]
fn health_survives_a_restart() {
    let (dead, origin) = (Dead::new(), Origin::saying(""));
    let check = |interval_ms: u64, unhealthy_after: u64| json!({"interval_ms": interval_ms, "timeout_ms": 10, "unhealthy_after": unhealthy_after});
    let folder = std::env::temp_dir().join(format!("sluice-it-state-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let with = |check| {
        Setup::to(&[&dead.endpoint(), &origin.endpoint])
            .with("clusters.default.state_file", folder.join("health.json").to_str().unwrap())
            .with("clusters.default.health_check", check)
    };
    let Some(mut proxy) = with(check(20, 1)).start() else { return };
    let health = |proxy: &Proxy| proxy.endpoint(&dead.endpoint())["health"].clone();
    poll("the check to fail", || (health(&proxy) == "unhealthy").then_some(()));
    proxy.signal(Signal::SIGTERM);
    assert!(proxy.wait().success());
    // The second process makes too few checks to find out: it can only know from the file.
    let proxy = with(check(3_600_000, 1000)).start();
    let _ = std::fs::remove_dir_all(&folder);
    let Some(proxy) = proxy else { return };
    assert_eq!(health(&proxy), "unhealthy");
}
