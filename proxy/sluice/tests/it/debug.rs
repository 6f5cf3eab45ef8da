//! Debug fields: only clients with the token get them, and no one learns the token.

use serde_json::json;

use crate::support::{Dead, Message, Origin, Proxy, Setup, ok};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn with_token(setup: Setup) -> Setup {
    let file = setup.file("token", &format!("{TOKEN}\n"));
    // Its clients choose their request ids.
    let setup = setup.with("trusted_proxies", json!(["127.0.0.1"]));
    setup.with("debug_token_file", file.to_str().unwrap())
}

fn get(proxy: &Proxy, target: &str, token: &str) -> Message {
    proxy.ask(format!(
        "GET {target} HTTP/1.1\r\nHost: a\r\nX-Request-Id: id-1\r\nX-Sluice-Debug: {token}\r\n\r\n"
    ))
}

/// The names in Server-Timing, each with a number of milliseconds.
fn timing(answer: &Message) -> Vec<&str> {
    let metrics = answer.all("server-timing").into_iter().flat_map(|value| value.split(", "));
    let names = metrics.map(|metric| {
        let (name, took) = metric.split_once(";dur=").unwrap();
        assert!(took.parse::<f64>().unwrap() >= 0.0, "{metric}");
        name
    });
    names.collect()
}

#[test]
fn clients_with_the_token_get_debug_fields() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nServer-Timing: db;dur=1\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    let Some(proxy) = with_token(Setup::to_origin(&origin)).start() else { return };
    let mut client = proxy.connect();
    let request =
        format!("GET /a HTTP/1.1\r\nHost: a\r\nX-Request-Id: id-1\r\nx-sluice-debug: {TOKEN}\r\n\r\n");
    let first = client.ask(&request);
    assert_eq!(timing(&first), ["db", "queue", "connect", "upstream", "total"]);
    assert_eq!(origin.last().get("x-sluice-debug"), None);
    let second = client.ask(&request);
    assert_eq!(timing(&second), ["db", "queue", "upstream", "total"], "no connect on a reused connection");
    for (record, answer) in proxy.records(2, "/a").iter().zip([first, second]) {
        let path = record["path"].as_str().unwrap();
        assert_ne!(path, "direct");
        assert_eq!(
            answer.get("x-sluice-debug").unwrap(),
            format!(
                "retries=0, path=\"{path}\", route=\"default\", cluster=\"default\", endpoint=\"{}\", \
                 request_id=\"id-1\"",
                origin.endpoint
            )
        );
    }
}

#[test]
fn without_the_token_there_are_no_debug_fields_and_the_field_is_removed() {
    let origin = Origin::saying("");
    let Some(proxy) = with_token(Setup::to_origin(&origin)).start() else { return };
    for token in [
        "",
        "0123456789abcdef",
        &TOKEN.to_uppercase(),
        &format!("{TOKEN}{TOKEN}"),
        &format!("{TOKEN}, {TOKEN}"),
    ] {
        let answer = get(&proxy, "/", token);
        assert_eq!((answer.get("server-timing"), answer.get("x-sluice-debug")), (None, None), "{token}");
        assert_eq!(origin.last().get("x-sluice-debug"), None, "{token}");
        assert_eq!(origin.last().get("x-request-id"), Some("id-1"));
    }
}

#[test]
fn without_a_token_file_the_field_is_forwarded() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    assert_eq!(get(&proxy, "/", TOKEN).get("x-sluice-debug"), None);
    assert_eq!(origin.last().get("x-sluice-debug"), Some(TOKEN));
}

#[test]
fn our_own_responses_have_debug_fields() {
    let dead = Dead::new();
    let origin = Origin::playing(|mut peer| {
        peer.next();
        peer.send(ok(""));
    });
    let setup = with_token(Setup::to_origin(&origin))
        .with("clusters.dead", json!({"endpoints": [dead.endpoint()]}))
        .with(
            "routes",
            json!([
                {"name": "dead", "path_prefix": "/dead", "cluster": "dead"},
                {"name": "moved", "path_prefix": "/moved", "redirect": {"location": "/"}},
                {"name": "some", "path_prefix": "/some", "cluster": "default"},
            ]),
        );
    let Some(proxy) = setup.start() else { return };
    let unreached = dead.endpoint();
    let unreached =
        format!("retries=0, route=\"dead\", cluster=\"dead\", endpoint=\"{unreached}\", request_id=\"id-1\"");
    for (target, status, names, facts) in [
        ("/dead", 502, &["queue", "total"][..], unreached.as_str()),
        ("/moved", 302, &["total"], "retries=0, route=\"moved\", request_id=\"id-1\""),
        ("/none", 404, &["total"], "retries=0, request_id=\"id-1\""),
    ] {
        let answer = get(&proxy, target, TOKEN);
        assert_eq!((answer.status(), timing(&answer)), (status, names.to_vec()), "{target}");
        assert_eq!(answer.get("x-sluice-debug"), Some(facts));
        let answer = get(&proxy, target, "wrong");
        assert_eq!((answer.status(), answer.get("x-sluice-debug")), (status, None), "{target}");
    }
}

#[test]
fn a_short_token_is_refused() {
    let setup = Setup::to(&["127.0.0.1:1"]);
    let file = setup.file("token", "short\n");
    let (code, said) = setup.with("debug_token_file", file.to_str().unwrap()).fails();
    assert_eq!(code, Some(2));
    assert!(said.contains("debug_token_file: ") && said.contains("16 to 256 bytes"), "{said}");
}
