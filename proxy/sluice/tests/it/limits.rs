//! Rate limits and bans.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{Message, Origin, Proxy, Setup, poll, upgrade};

/// A proxy whose only route has this limit. The rate is so low that no test is slow enough to see it.
fn limited(limit: &Value) -> Option<(Origin, Proxy)> {
    let origin = Origin::saying("hello");
    let setup = Setup::to_origin(&origin)
        .with("trusted_proxies", json!(["127.0.0.1"]))
        .with("rate_limits", json!({"login": limit}))
        .with("routes", json!([{"cluster": "default", "rate_limits": ["login"]}]));
    let proxy = setup.start()?;
    Some((origin, proxy))
}

/// Asks on behalf of a client.
fn ask(proxy: &Proxy, client: &str, fields: &str) -> Message {
    proxy.ask(format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n{fields}\r\n"))
}

fn statuses(proxy: &Proxy, client: &str, fields: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| ask(proxy, client, fields).status()).collect()
}

#[test]
fn requests_beyond_the_burst_get_429() {
    let Some((origin, proxy)) = limited(&json!({"rate": "1/1h", "burst": 3})) else { return };
    let mut wire = proxy.connect();
    let mut last = None;
    for wanted in [200, 200, 200, 429, 429] {
        let answer = wire
            .ask("POST / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(answer.status(), wanted, "the connection is kept");
        last = Some(answer);
    }
    let refused = last.unwrap();
    let seconds: u64 = refused.get("retry-after").unwrap().parse().unwrap();
    assert!((3500..=3600).contains(&seconds), "{seconds}");
    assert_eq!(refused.get("ratelimit-policy"), Some("\"login\";q=1;w=3600"));
    assert_eq!(refused.get("ratelimit"), Some(format!("\"login\";r=0;t={seconds}").as_str()));
    assert_eq!(refused.get("x-sluice-reason"), Some("rate_limited"));
    assert_eq!(statuses(&proxy, "192.0.2.2", "", 4), [200, 200, 200, 429], "another client");
    assert_eq!(statuses(&proxy, "::ffff:192.0.2.2", "", 1), [429], "the same in another spelling");
    assert_eq!(statuses(&proxy, "2001:db8::1", "", 3), [200; 3]);
    assert_eq!(statuses(&proxy, "2001:db8::ffff:2", "", 1), [429], "the same host");
    assert_eq!(origin.requests().len(), 9);
    let refused = "sluice_rate_limited_total{limit=\"login\",outcome=\"rejected\"}";
    assert_eq!(proxy.metric(refused), 5.0);
}

#[test]
fn a_value_counts_for_itself_and_its_lack_for_the_address() {
    let limit = json!({"rate": "1/1h", "burst": 2, "key": {"header": "X-Key"}});
    let Some((_origin, proxy)) = limited(&limit) else { return };
    assert_eq!(statuses(&proxy, "192.0.2.1", "X-Key: one\r\n", 3), [200, 200, 429]);
    assert_eq!(statuses(&proxy, "192.0.2.9", "X-Key: one\r\n", 1), [429], "the key from elsewhere");
    assert_eq!(statuses(&proxy, "192.0.2.1", "X-Key: two\r\n", 3), [200, 200, 429]);
    assert_eq!(statuses(&proxy, "192.0.2.1", "", 3), [200, 200, 429]);
    assert_eq!(statuses(&proxy, "192.0.2.2", "", 1), [200]);
}

#[test]
fn delayed_requests_come_out_in_time_and_a_client_may_leave() {
    let limit = json!({"rate": "20/1s", "burst": 3, "then": "delay"});
    let Some((origin, proxy)) = limited(&limit) else { return };
    let begun = Instant::now();
    let answers: Vec<u16> = std::thread::scope(|scope| {
        let each = |_| scope.spawn(|| ask(&proxy, "192.0.2.1", "").status());
        let all: Vec<_> = (0..20).map(each).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let served = answers.iter().filter(|status| **status == 200).count();
    // The first at once; each further one 50 ms after the one before, however long this machine paused.
    assert!(served >= 4 && begun.elapsed() >= Duration::from_millis(50) * (served as u32 - 1), "{answers:?}");
    assert!(answers.iter().all(|status| [200, 429].contains(status)), "{answers:?}");
    let before = origin.requests().len();
    let slow = json!({"rate": "1/3m", "burst": 3, "then": "delay"});
    let mut config = proxy.config.clone();
    config["rate_limits"]["login"] = slow;
    assert_eq!(proxy.reload(&config).0, Some(0));
    assert_eq!(ask(&proxy, "192.0.2.3", "").status(), 200);
    let delayed = || proxy.metric("sluice_rate_limited_total{limit=\"login\",outcome=\"delayed\"}");
    let so_far = delayed();
    let mut wire = proxy.connect();
    wire.send("GET /left HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.3\r\n\r\n");
    poll("a wait", || (delayed() > so_far).then_some(()));
    wire.reset();
    assert_eq!(proxy.outcome("/left"), (499, "client_gone".to_owned()));
    assert_eq!(origin.requests().len(), before + 1);
}

#[test]
fn a_dry_run_lets_everything_through() {
    let limit = json!({"rate": "1/1h", "then": "ban", "dry_run": true});
    let Some((_origin, proxy)) = limited(&limit) else { return };
    assert_eq!(statuses(&proxy, "192.0.2.1", "", 4), [200; 4]);
    assert_eq!(proxy.metric("sluice_rate_limited_total{limit=\"login\",outcome=\"dry_run\"}"), 3.0);
    assert_eq!(proxy.metric("sluice_bans_listed"), 0.0);
}

#[test]
fn a_banned_client_is_refused_on_every_route() {
    let origin = Origin::saying("hello");
    let setup = Setup::to_origin(&origin)
        .with("trusted_proxies", json!(["127.0.0.1"]))
        .with("rate_limits", json!({"login": {"rate": "1/1h", "then": "ban", "ban": "1h"}}))
        .with(
            "routes",
            json!([{"path_prefix": "/login", "cluster": "default", "rate_limits": ["login"]}, {"name": "rest", "cluster": "default"}]),
        );
    let Some(proxy) = setup.start() else { return };
    let get = |client: &str, path: &str| {
        proxy.ask(format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n"))
    };
    assert_eq!(get("192.0.2.1", "/login").status(), 200);
    let refused = get("192.0.2.1", "/login");
    assert_eq!(
        (refused.status(), refused.get("retry-after"), refused.get("connection")),
        (429, Some("3600"), Some("close"))
    );
    assert_eq!(get("192.0.2.1", "/elsewhere").status(), 403);
    assert_eq!(proxy.outcome("/elsewhere"), (403, "banned".to_owned()));
    assert_eq!(get("192.0.2.2", "/elsewhere").status(), 200);
    assert_eq!(get("127.0.0.1", "/login").status(), 200);
    assert_eq!(get("127.0.0.1", "/login").status(), 429);
    assert_eq!(get("127.0.0.1", "/elsewhere").status(), 200, "a trusted proxy is not banned");
    assert_eq!([(); 2].map(|()| get("127.0.0.9", "/login").status()), [200, 429]);
    assert_eq!(get("127.0.0.9", "/elsewhere").status(), 200, "nor is loopback");
    let (code, table) = proxy.command("bans", &["list"]);
    assert!(code == Some(0) && table.contains("192.0.2.1") && table.contains("login"), "{table}");
    // A reload and another process keep it.
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    assert_eq!(get("192.0.2.1", "/").status(), 403);
    let _next = upgrade(&proxy);
    assert_eq!(get("192.0.2.1", "/").status(), 403);
    assert_eq!(get("127.0.0.1", "/login").status(), 429, "the counts are kept as well");
    assert_eq!(proxy.command("bans", &["remove", "192.0.2.1"]).0, Some(0));
    assert_eq!(get("192.0.2.1", "/login").status(), 200, "its count has ended too");
}

#[test]
fn a_banned_address_is_closed_before_anything_is_read() {
    let origin = Origin::saying("hello");
    let Some(proxy) = Setup::to_origin(&origin).with("bans_max", 1).start() else { return };
    let mut kept = proxy.connect();
    assert_eq!(kept.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200);
    assert_eq!(proxy.command("bans", &["add", "127.0.0.1", "--for", "1h"]).0, Some(0));
    proxy.connect().expect_end();
    assert_eq!(kept.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status(), 403);
    kept.expect_end();
    let (code, said) = proxy.command("bans", &["add", "192.0.2.1"]);
    assert!(code == Some(1) && said.contains("bans_max"), "{said}");
    assert_eq!(proxy.metric("sluice_bans_turned_away_total"), 2.0);
    assert_eq!(proxy.command("bans", &["remove", "127.0.0.1"]).0, Some(0));
    let (code, said) = proxy.command("bans", &["remove", "127.0.0.1"]);
    assert!(code == Some(1) && said.contains("not banned"), "{said}");
    assert_eq!(proxy.get("/").status(), 200);
}

#[test]
fn a_client_has_only_so_many_connections() {
    let origin = Origin::saying("hello");
    let setup =
        Setup::to_origin(&origin).with("listeners.0.limits", json!({"connections_per_client_max": 2}));
    let Some(proxy) = setup.start() else { return };
    let mut held = [proxy.connect(), proxy.connect()];
    for wire in &mut held {
        assert_eq!(wire.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200);
    }
    let mut third = proxy.connect();
    assert_eq!(third.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status(), 503);
    third.expect_end();
    assert_eq!(held[0].ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200, "those before stay");
    let [first, _second] = held;
    drop(first);
    poll("a place", || (proxy.get("/").status() == 200).then_some(()));
    assert!(proxy.metric("sluice_downstream_connections_rejected_total") >= 1.0);
}

#[test]
fn clients_behind_the_proxy_protocol_are_counted_apart() {
    let origin = Origin::saying("hello");
    let setup = Setup::to_origin(&origin)
        .with("listeners.0.proxy_protocol", "v1")
        .with("listeners.0.limits", json!({"connections_per_client_max": 1}));
    let Some(proxy) = setup.start() else { return };
    let connect = |client: &str| {
        let mut wire = proxy.connect();
        wire.send(format!("PROXY TCP4 {client} 192.0.2.9 1 2\r\n"));
        wire
    };
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut one = connect("192.0.2.1");
    assert_eq!(one.ask(get).status(), 200);
    connect("192.0.2.1").expect_end();
    assert_eq!(connect("192.0.2.2").ask(get).status(), 200);
    assert_eq!(one.ask(get).status(), 200);
    // A ban of a client is not one of the proxy in front.
    assert_eq!(proxy.command("bans", &["add", "192.0.2.1"]).0, Some(0));
    assert_eq!(one.ask(get).status(), 403);
    assert_eq!(connect("192.0.2.2").ask(get).status(), 200);
}

#[test]
fn spellings_of_a_cookie_are_one_client_and_several_cookies_none() {
    let limit = json!({"rate": "1/1h", "burst": 2, "key": {"cookie": "sid"}});
    let Some((_origin, proxy)) = limited(&limit) else { return };
    let mut count = 0;
    let mut ask = |fields: &str| {
        count += 1;
        // Another address each time: only the value counts.
        ask(&proxy, &format!("192.0.2.{count}"), fields).status()
    };
    let same = ["Cookie: sid=abc\r\n", "Cookie: a=b; sid=\"a%62c\"\r\n", "Cookie: sid=%61bc; a=b\r\n"];
    assert_eq!(same.map(&mut ask), [200, 200, 429]);
    // With two values nobody knows which one the application reads: the address counts.
    let doubled = ["Cookie: sid=r1; sid=abc\r\n", "Cookie: sid=r2\r\nCookie: sid=abc\r\n"];
    for fields in doubled {
        assert_eq!(statuses(&proxy, "192.0.2.200", fields, 1), [200]);
    }
    assert_eq!(statuses(&proxy, "192.0.2.200", "", 1), [429]);
}

#[test]
fn a_limit_that_bans_counts_what_another_refuses() {
    let origin = Origin::saying("hello");
    let limits =
        json!({"few": {"rate": "1/1h", "burst": 1}, "wild": {"rate": "1/1h", "burst": 3, "then": "ban"}});
    let setup = Setup::to_origin(&origin)
        .with("trusted_proxies", json!(["127.0.0.1"]))
        .with("rate_limits", limits)
        .with("routes", json!([{"cluster": "default", "rate_limits": ["few", "wild"]}]));
    let Some(proxy) = setup.start() else { return };
    assert_eq!(statuses(&proxy, "192.0.2.1", "", 5), [200, 429, 429, 429, 403]);
}

#[test]
fn a_client_that_resets_leaves_the_line_also_with_a_body() {
    let limit = json!({"rate": "1/4m", "burst": 2, "then": "delay"});
    let Some((_origin, proxy)) = limited(&limit) else { return };
    assert_eq!(ask(&proxy, "192.0.2.1", "").status(), 200);
    let mut wire = proxy.connect();
    wire.send("POST /gone HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 9\r\n\r\n");
    poll("a request that waits", || {
        (proxy.metric("sluice_rate_limited_total{limit=\"login\",outcome=\"delayed\"}") > 0.0).then_some(())
    });
    wire.reset();
    assert_eq!(proxy.outcome("/gone"), (499, "client_gone".to_owned()));
}
