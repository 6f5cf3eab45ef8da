//! Which endpoint a request goes to, and which state of endpoints is kept.

use std::collections::HashMap;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Dead, Message, Origin, Proxy, Setup, poll, upgrade};

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

/// The cookie that a response sets, as a field of requests, and its attributes.
fn set_by(answer: &Message) -> (String, String) {
    let set = answer.get("set-cookie").unwrap();
    let (pair, attributes) = set.split_once("; ").unwrap();
    (format!("Cookie: a=b; {pair}; c=d"), attributes.to_owned())
}

#[test]
fn a_client_stays_at_its_endpoint_by_a_cookie() {
    let origins = origins();
    let setup = setup(&origins, json!("least_requests"))
        .with("clusters.default.affinity", json!({"cookie": {"name": "at", "ttl": "1h"}}));
    let Some(proxy) = setup.start() else { return };
    let mut clients = HashMap::new();
    poll("a client at each endpoint", || {
        let answer = proxy.get("/");
        let (cookie, attributes) = set_by(&answer);
        assert_eq!(attributes, "Path=/; HttpOnly; Max-Age=3600; SameSite=Lax");
        let port = |origin: &Origin| origin.endpoint.rsplit_once(':').unwrap().1.to_owned();
        assert!(!origins.iter().any(|origin| cookie.contains(&port(origin))), "{cookie} names nobody");
        clients.entry(answer.text().to_owned()).or_insert(cookie);
        (clients.len() == 3).then_some(())
    });
    let stays = |proxy: &Proxy, clients: &HashMap<String, String>| {
        for (name, cookie) in clients {
            let answer = proxy.ask(format!("GET / HTTP/1.1\r\nHost: a\r\n{cookie}\r\n\r\n"));
            assert_eq!((answer.text(), answer.get("set-cookie")), (name.as_str(), None));
        }
    };
    (0..3).for_each(|_| stays(&proxy, &clients));
    // Values that sluice does not set.
    for other in
        ["at=one", "at=", "at=0123456789ABCDEF0123456789ABCDEF", "att=0123456789abcdef0123456789abcdef"]
    {
        let answer = proxy.ask(format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {other}\r\n\r\n"));
        assert!(answer.get("set-cookie").is_some(), "{other}");
    }
    // Only those of an endpoint that goes move, and they return with it.
    let mut config = proxy.config.clone();
    config["clusters"]["default"]["endpoints"] = json!([origins[0].endpoint, origins[1].endpoint]);
    assert_eq!(proxy.reload(&config).0, Some(0));
    let moved = clients.remove("three").unwrap();
    stays(&proxy, &clients);
    let answer = proxy.ask(format!("GET / HTTP/1.1\r\nHost: a\r\n{moved}\r\n\r\n"));
    assert_ne!(answer.text(), "three");
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    clients.insert("three".to_owned(), moved);
    stays(&proxy, &clients);
    let _next = upgrade(&proxy);
    stays(&proxy, &clients);
}

#[test]
fn several_sluices_send_a_client_to_the_same_endpoint() {
    let origins = origins();
    let affinity = json!({"cookie": {"name": "at"}});
    let by_cookie =
        || setup(&origins, json!("least_requests")).with("clusters.default.affinity", affinity.clone());
    let mut endpoints: Vec<_> = origins.iter().map(|origin| origin.endpoint.clone()).collect();
    endpoints.reverse();
    let Some(one) = by_cookie().start() else { return };
    let Some(other) = by_cookie().with("clusters.default.endpoints", json!(endpoints)).start() else {
        return;
    };
    for _ in 0..20 {
        let answer = one.get("/");
        let (cookie, _) = set_by(&answer);
        let there = other.ask(format!("GET / HTTP/1.1\r\nHost: a\r\n{cookie}\r\n\r\n"));
        assert_eq!(there.text(), answer.text());
    }
    let hash = json!({"hash": {"header": "x-user"}});
    let by_hash = || setup(&origins, hash.clone());
    let Some(one) = by_hash().start() else { return };
    let Some(other) = by_hash().with("clusters.default.endpoints", json!(endpoints)).start() else { return };
    for user in 0..20 {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n\r\n");
        assert_eq!(one.ask(&request).text(), other.ask(&request).text());
    }
}

#[test]
fn the_cookie_is_secure_with_https_and_leaves_other_cookies_alone() {
    let origin =
        Origin::answering(|_| b"HTTP/1.1 200 OK\r\nSet-Cookie: own=1\r\nContent-Length: 0\r\n\r\n".to_vec());
    let setup = Setup::to_origin(&origin)
        .with("trusted_proxies", json!(["127.0.0.1"]))
        .with("clusters.default.affinity", json!({"cookie": {"same_site": "none"}}));
    let Some(proxy) = setup.start() else { return };
    let answer = proxy.ask("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\n\r\n");
    let set = answer.all("set-cookie");
    assert!(set.len() == 2 && set[0] == "own=1" && set[1].starts_with("sluice="), "{set:?}");
    assert!(set[1].ends_with("; Path=/; HttpOnly; SameSite=None; Secure"), "{set:?}");
}

#[test]
fn a_backup_is_used_only_when_the_others_fail() {
    let (origins, dead) = (origins(), Dead::new());
    let backup = |endpoint: &str| json!({"address": endpoint, "backup": true});
    let endpoints = json!([origins[0].endpoint, origins[1].endpoint, backup(&origins[2].endpoint)]);
    let one_by_one = setup(&origins, json!("round_robin")).with("clusters.default.endpoints", endpoints);
    let Some(proxy) = one_by_one.start() else { return };
    assert_eq!(spread(&proxy, 8, "X: y"), [("one".to_owned(), 4), ("two".to_owned(), 4)].into());
    let mut config = proxy.config.clone();
    config["clusters"]["default"]["endpoints"] = json!([dead.endpoint(), backup(&origins[2].endpoint)]);
    assert_eq!(proxy.reload(&config).0, Some(0));
    assert_eq!(
        spread(&proxy, 20, "X: y"),
        [("three".to_owned(), 20)].into(),
        "as a retry, then because it is ejected"
    );
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
