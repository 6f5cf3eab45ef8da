//! Ways to give others a response that was made for somebody else, or to get one that was.

use serde_json::json;

use super::{get, is_hit, request, response, serve};
use crate::support::Origin;

/// An application that repeats everything of a request in its response, and lets it be stored.
fn echo() -> Origin {
    Origin::answering(|request| {
        let fields = request.fields.iter().filter(|(name, _)| !is_of_connection(name));
        let fields: Vec<String> = fields.map(|(name, value)| format!("{name}: {value}")).collect();
        let body = format!("{}\n{}\n{}", request.line, fields.join("\n"), request.text());
        response("Cache-Control: max-age=60\r\n", body)
    })
}

/// Whether a field is of another value in each request anyway.
fn is_of_connection(name: &str) -> bool {
    ["x-request-id", "x-request-start", "x-forwarded-for", "traceparent"]
        .iter()
        .any(|other| name.eq_ignore_ascii_case(other))
}

#[test]
fn nobody_gets_a_response_that_was_made_for_another_request() {
    let origin = echo();
    let Some(proxy) = serve(&origin, json!({})) else { return };
    // Fields by which frameworks change a response, unless something takes them out or keeps them apart.
    for (at, field) in [
        "X-Forwarded-Host: evil.test",
        "X-Forwarded-Proto: ftp",
        "X-Forwarded-Scheme: http",
        "X-Forwarded-Port: 1",
        "X-Forwarded-Prefix: /evil",
        "X-Forwarded-Server: evil",
        "X-Forwarded-Ssl: on",
        "Forwarded: host=evil.test",
        "X-Original-URL: /evil",
        "X-Rewrite-URL: /evil",
        "X-Original-Host: evil",
        "X-Host: evil",
        "X-HTTP-Method-Override: PUT",
        "X-HTTP-Method: PUT",
        "X-Method-Override: PUT",
        "X-Action-Method: PUT",
        "X-Requested-With: XMLHttpRequest",
        "X_Forwarded_Host: evil.test",
        "Front-End-Https: on",
        "X-Accel-Mapping: /=/etc/",
    ]
    .iter()
    .enumerate()
    {
        let target = format!("/{at}");
        get(&proxy, &target, &format!("{field}\r\n"));
        let (name, value) = field.split_once(": ").unwrap();
        let clean = get(&proxy, &target, "");
        let has_it = clean.text().lines().any(|line| {
            line.split_once(": ").is_some_and(|(other, got)| other.eq_ignore_ascii_case(name) && got == value)
        });
        assert!(!has_it, "{field}: {}", clean.text());
    }
}

#[test]
fn spellings_hosts_and_bodies_are_kept_apart() {
    let origin = echo();
    let Some(proxy) = serve(&origin, json!({})) else { return };
    let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
    for target in [
        "/a",
        "/a?",
        "/a?b=1",
        "/a?b=1&b=2",
        "/a?b=2&b=1",
        "/a?b=1;c=2",
        "/a;b",
        "/a/",
        "/a/x.css",
        "/a%2fx.css",
        "/a%00x.css",
        "/a%3fx.css",
        "/a%23.css",
        "//a",
        "/./a",
        "/b/../a",
        "/b/%2e%2e/a",
        "/%61",
        "/A",
        "/a%20",
        "/a%c3%a4",
        "/a%C3%A4",
        "/a\\b",
    ] {
        for _ in 0..2 {
            let answer = get(&proxy, target, "");
            if answer.status() == 200 {
                assert_eq!(first(answer.text().to_owned()), format!("GET {target} HTTP/1.1"));
            }
        }
    }
    // One that an application may read in another way is not stored.
    for target in ["/%61", "/b/../a", "//a", "/a%2fx.css", "/a%c3%a4"] {
        assert!(!is_hit(&get(&proxy, target, "")), "{target}");
    }
    for target in ["/a", "/a;b", "/a%20", "/a%C3%A4", "/a?b=1&b=2"] {
        assert!(is_hit(&get(&proxy, target, "")), "{target}");
    }
    for host in ["a.test", "a.test:81", "b.test", "a.test."] {
        let ask = || proxy.ask(format!("GET /host HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert!(ask().text().contains(&format!("\nHost: {host}\n")), "{host}");
        assert!(is_hit(&ask()));
    }
    let upper = proxy.ask("GET /host HTTP/1.1\r\nHost: A.TEST\r\n\r\n");
    assert!(is_hit(&upper));
}

#[test]
fn a_body_of_a_get_is_nobody_elses() {
    let origin = echo();
    let Some(proxy) = serve(&origin, json!({})) else { return };
    for body in ["Content-Length: 4\r\n\r\nevil", "Transfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n"]
    {
        let answer = proxy.ask(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{body}"));
        assert!(answer.text().ends_with("evil"));
        let clean = get(&proxy, "/", "");
        assert!(!clean.text().ends_with("evil"));
    }
    assert!(is_hit(&get(&proxy, "/", "")));
    let answer = proxy.ask("GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\nevil");
    assert!(!is_hit(&answer) && answer.text().ends_with("evil"));
}

#[test]
fn errors_that_one_can_provoke_are_not_for_others() {
    let origin = Origin::answering(|request| {
        let is_odd = request.get("x-odd").is_some() || request.get("max-forwards").is_some();
        match is_odd {
            true => super::answer("400 Bad Request", "", "odd"),
            false => response("Cache-Control: max-age=60\r\n", "page"),
        }
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    for (target, field) in [("/x", "X-Odd: a\r\n"), ("/y", "Max-Forwards: 0\r\n")] {
        assert_eq!(get(&proxy, target, field).status(), 400);
        assert_eq!(get(&proxy, target, "").text(), "page");
    }
    // Sluice's own errors are never stored.
    assert!(proxy.ask("GET /b HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: x\r\n\r\n").status() >= 400);
    assert_eq!(proxy.ask(request("/b", "")).text(), "page");
}

#[test]
fn what_a_client_hides_from_the_application_does_not_choose_a_response() {
    let origin = Origin::answering(|request| {
        let language = request.get("accept-language").or(request.get("accept_language")).unwrap_or("default");
        response("Cache-Control: max-age=60\r\nVary: Accept-Language\r\n", language)
    });
    let Some(proxy) = serve(&origin, json!({})) else { return };
    let hidden = get(&proxy, "/", "Accept-Language: de\r\nConnection: Accept-Language\r\n");
    assert_eq!((hidden.text(), super::told(&hidden)), ("default", "sluice; fwd=bypass"));
    assert_eq!(get(&proxy, "/", "Accept-Language: de\r\n").text(), "de");
    assert_eq!(get(&proxy, "/", "Accept_Language: fr\r\n").text(), "fr");
    assert_eq!(get(&proxy, "/", "").text(), "default");
    assert_eq!(
        get(&proxy, "/b", "X_HTTP_Method_Override: PUT\r\n").get("cache-status"),
        Some("sluice; fwd=bypass")
    );
}

#[test]
fn a_certificate_that_a_proxy_in_front_has_seen_is_a_credential() {
    let origin = Origin::answering(|request| {
        let who = request
            .get("x-client-cert-subject")
            .or(request.get("x-forwarded-client-cert"))
            .unwrap_or("nobody");
        response("Cache-Control: max-age=60\r\n", who)
    });
    let setup = super::caching(&origin, json!({})).with("trusted_proxies", json!(["127.0.0.1"]));
    let Some(proxy) = setup.start() else { return };
    for field in ["X-Client-Cert-Subject", "X-Forwarded-Client-Cert"] {
        for who in ["CN=a", "CN=b"] {
            assert_eq!(get(&proxy, "/", &format!("{field}: {who}\r\n")).text(), who);
        }
    }
    assert_eq!(get(&proxy, "/", "").text(), "nobody");
}

#[test]
fn a_route_that_leads_elsewhere_begins_anew() {
    let origin = Origin::answering(|request| {
        response("Cache-Control: max-age=60\r\n", request.get("x-internal").unwrap_or("public"))
    });
    let route = |internal: bool| match internal {
        true => {
            json!({"cluster": "default", "cache": "pages", "request_headers": {"set": {"X-Internal": "secret"}}})
        }
        false => json!({"cluster": "default", "cache": "pages"}),
    };
    let setup = super::caching(&origin, json!({})).with("routes", json!([route(true)]));
    let Some(proxy) = setup.start() else { return };
    assert_eq!(get(&proxy, "/", "").text(), "secret");
    let mut config = proxy.config.clone();
    config["routes"] = json!([route(false)]);
    assert_eq!(proxy.reload(&config).0, Some(0));
    assert_eq!(get(&proxy, "/", "").text(), "public");
}
