//! The status document and its stream, from the running binary.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::psql::program;
use crate::support::{Dead, Origin, Proxy, Setup, Wire, poll};

fn document(proxy: &Proxy) -> Value {
    serde_json::from_slice(&proxy.admin("/status.json").body).unwrap()
}

#[test]
fn the_document_follows_the_traffic() {
    let origin = Origin::saying("hi");
    let dead = Dead::new();
    let Some(proxy) = Setup::to_origin(&origin)
        .with("clusters.broken", json!({"endpoints": [dead.endpoint()]}))
        .with(
            "routes",
            json!([
                {"name": "broken", "path_prefix": "/broken", "cluster": "broken"},
                {"name": "rest", "cluster": "default"},
            ]),
        )
        .start()
    else {
        return;
    };
    let seen = poll("a second with requests in it", || {
        assert_eq!(proxy.get("/").text(), "hi");
        assert_eq!(proxy.get("/broken").status(), 502);
        let document = document(&proxy);
        let rate = document["clusters"][1]["endpoints"][0]["rates"]["requests"].as_f64()?;
        (rate > 0.0 && document["errors"][0].is_object()).then_some(document)
    });
    let endpoint = &seen["clusters"][1]["endpoints"][0];
    assert_eq!(
        (&seen["clusters"][1]["name"], &endpoint["label"]),
        (&json!("default"), &json!(origin.endpoint))
    );
    assert_eq!((&endpoint["health"], &endpoint["weight"]), (&json!("healthy"), &json!(1)));
    assert!(endpoint["rates"]["latency_10s"]["p99_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(endpoint["rates"]["error_share_10s"], 0.0);
    assert_eq!(seen["clusters"][0]["rates"]["error_share_10s"], 1.0);
    let error = &seen["errors"][0];
    assert_eq!(
        (&error["reason"], &error["route"], &error["status"]),
        (&json!("connect_refused"), &json!("broken"), &json!(502))
    );
    let fixed = &seen["fixed"];
    assert_eq!(fixed["config"]["clusters"]["default"]["endpoints"][0]["address"], origin.endpoint);
    assert_eq!((&fixed["workers"], &fixed["listeners"][0]["name"]), (&json!(1), &json!("main")));
    assert!(fixed["findings"].as_array().unwrap().iter().any(|finding| finding["name"] == "release"));
    assert_eq!(fixed["assists"][0]["name"], "bypass");
}

/// An application whose threads are all busy accepts nothing, so connections wait in its accept queue.
#[test]
fn time_with_all_threads_busy_is_counted() {
    let application = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = application.local_addr().unwrap().to_string();
    let Some(proxy) = Setup::to(&[&endpoint]).start() else { return };
    let labels = format!("{{cluster=\"default\",endpoint=\"{endpoint}\"}}");
    let seconds = || proxy.metric(&format!("sluice_endpoint_saturated_seconds_total{labels}"));
    assert_eq!(seconds(), 0.0);
    let mut wire = proxy.connect();
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    poll("a busy second", || (seconds() > 0.5).then_some(()));
}

#[test]
fn the_stream_contains_changes_and_the_drain() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut wire = Wire::connect_unix(&proxy.folder.join("admin.sock"));
    wire.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut head = wire.head();
    assert_eq!(head.get("content-type"), Some("text/event-stream"));
    let mut text = String::new();
    while text.matches("event: change\n").count() < 2 {
        text.push_str(&String::from_utf8(wire.chunk(&mut head).expect("the stream continues")).unwrap());
    }
    assert!(text.contains("event: whole\ndata: {"));
    // A reader of the stream does not keep sluice from exiting.
    let mut proxy = proxy;
    proxy.signal(nix::sys::signal::Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn other_addresses_than_loopback_need_a_token_file() {
    let (code, said) = Setup::to(&["127.0.0.1:1"]).with("admin", "0.0.0.0:0").fails();
    assert_eq!(code, Some(2));
    assert!(
        said.contains("0.0.0.0:0 is not a loopback address") && said.contains("admin_token_file"),
        "{said}"
    );

    let open = |mode: &str| {
        let setup = Setup::to(&["127.0.0.1:1"]);
        let token = setup.file("token", "0123456789abcdef\n");
        let chmod = format!("chmod {mode} {}", token.display());
        setup.with("admin", "0.0.0.0:0").with("admin_token_file", token.to_str().unwrap()).after(&chmod)
    };
    let (code, said) = open("644").fails();
    assert_eq!(code, Some(1));
    assert!(
        said.contains("admin_token_file: ") && said.contains("is accessible to others (mode 0644)"),
        "{said}"
    );

    let Some(proxy) = open("600").start() else { return };
    let port = proxy.admin_address().rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    let ask = |fields: &str| {
        let mut wire = Wire::connect(([127, 0, 0, 1], port).into());
        wire.ask(format!("GET /healthz HTTP/1.1\r\nHost: any.name\r\n{fields}\r\n"))
    };
    assert_eq!(ask("").status(), 401);
    assert_eq!(ask("Authorization: Bearer 0123456789abcdef\r\n").text(), "ok\n");
}

/// The findings of Prometheus's own tool, if it is installed.
#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    let Some(promtool) = program("promtool") else {
        let _ = writeln!(std::io::stderr(), "skipped: promtool is not installed");
        return;
    };
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    assert_eq!(proxy.get("/").text(), "hi");
    let page = proxy.admin("/metrics");
    assert_eq!(page.get("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let mut check = Command::new(promtool);
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check.stdin.take().unwrap().write_all(&page.body).unwrap();
    let output = check.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
