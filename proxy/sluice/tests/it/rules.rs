//! What a route is for, who may use it, and what it makes of the target.

use serde_json::json;

use crate::support::{Origin, Setup};

/// A response that shows which route was taken.
fn says(name: &str) -> serde_json::Value {
    json!({"status": 200, "body": name})
}

#[test]
fn the_most_specific_path_is_served_in_every_spelling() {
    let setup = Setup::to(&[]).without("clusters").with(
        "routes",
        json!([
            {"name": "rest", "respond": says("rest")},
            {"name": "php", "path_regex": "[.]php$", "respond": says("php")},
            {"name": "one", "path": "/a/one", "respond": says("one")},
            {"name": "below", "path_prefix": "/a", "not": {"path_prefix": ["/a/out"]}, "respond": says("below")},
            {"name": "beta", "path": "/a/one", "query": [{"name": "beta", "value": "1"}], "respond": says("beta")},
        ]),
    );
    let Some(proxy) = setup.start() else { return };
    for (target, wanted) in [
        ("/", "rest"),
        ("/a/one", "one"),
        ("/a/%6fne", "one"),
        ("//a/./one", "one"),
        ("/a/one?beta=%31", "beta"),
        ("/a/one?beta=2", "one"),
        ("/a/one/", "below"),
        ("/a/index.php", "php"),
        ("/a/index%2ephp?x=1", "php"),
        ("/a/out", "rest"),
        ("/a/x/../out/y", "rest"),
    ] {
        assert_eq!(proxy.get(target).text(), wanted, "{target}");
    }
}

#[test]
fn a_refused_client_gets_403_whatever_the_route() {
    let origin = Origin::saying("hello");
    let setup = Setup::to_origin(&origin)
        .with("trusted_proxies", json!(["127.0.0.1"]))
        .with("access", json!([{"deny": ["203.0.113.0/24"]}, {"hosts": ["*.inner.test"], "allow": ["10.0.0.0/8"]}]))
        .with(
            "routes",
            json!([
                {"cluster": "default"},
                {"name": "admin", "path_prefix": "/admin", "cluster": "default", "access": {"allow": ["10.1.0.0/16"]}},
            ]),
        );
    let Some(proxy) = setup.start() else { return };
    let get = |client: &str, host: &str, target: &str| {
        let answer =
            proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nX-Forwarded-For: {client}\r\n\r\n"));
        answer.line.split(' ').nth(1).unwrap().to_owned()
    };
    for (client, host, target, wanted) in [
        ("192.0.2.1", "a.test", "/", "200"),
        ("203.0.113.7", "a.test", "/", "403"),
        ("203.0.113.7", "a.test", "/none", "403"),
        ("::ffff:203.0.113.7", "a.test", "/", "403"),
        ("192.0.2.1", "A.Inner.Test.:80", "/", "403"),
        ("10.0.0.1", "a.inner.test", "/", "200"),
        ("10.0.0.1", "a.test", "/admin", "403"),
        ("10.0.0.1", "a.test", "/x/..//%61dmin/y", "403"),
        ("10.1.0.1", "a.test", "/admin", "200"),
        // The rightmost address that is not a proxy's counts.
        ("10.1.0.1, 192.0.2.1", "a.test", "/admin", "403"),
    ] {
        assert_eq!(get(client, host, target), wanted, "{client} {host} {target}");
    }
    assert_eq!(proxy.records(1, "/none")[0]["reason"], "access_denied");
    assert_eq!(origin.requests().len(), 3, "the origin saw only what was let through");
}

#[test]
fn a_refused_tunnel_is_closed() {
    let origin = Origin::saying("hello");
    let setup = Setup::to_origin(&origin)
        .with("listeners.0.protocol", "tcp")
        .with("listeners.0.cluster", "default")
        .with("access", json!([{"listeners": ["main"], "allow": ["10.0.0.0/8"]}]));
    let Some(proxy) = setup.start() else { return };
    let mut wire = proxy.connect();
    wire.expect_end();
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_redirect_takes_its_parts_from_the_request() {
    let location = "https://{host}/{cookie:lang}{path}{query}#{route}/{header:x-a}/{client_ip}";
    let setup = Setup::to(&[])
        .without("clusters")
        .with("routes", json!([{"name": "main", "redirect": {"status": 308, "location": location}}]));
    let Some(proxy) = setup.start() else { return };
    let answer =
        proxy.ask("GET /a%20b?c=d HTTP/1.1\r\nHost: A.test:8080\r\nCookie: lang=de\r\nX-A: x y/../z\r\n\r\n");
    let wanted = "https://A.test/de/a%20b?c=d#main/x%20y%2F..%2Fz/127.0.0.1";
    assert_eq!((answer.status(), answer.get("location")), (308, Some(wanted)));
}

#[test]
fn fields_take_their_values_from_the_request() {
    let origin = Origin::saying("");
    let setup = Setup::to_origin(&origin).with("trusted_proxies", json!(["127.0.0.1"])).with(
        "routes",
        json!([{
            "name": "main route",
            "cluster": "default",
            "request_headers": {
                "set": {"X-Real-IP": "{client_ip}", "X-User": "{header:x-account}", "X-Sid": "{cookie:sid}", "X-Plain": "{{x}}"},
                "add": {"X-All": "{method} {scheme}://{host}{path}{query} {request_id} {tls_sni}"},
            },
            "response_headers": {"set": {"X-Route": "{route}/{host}"}},
        }]),
    );
    let Some(proxy) = setup.start() else { return };
    let answer = proxy.ask(
        "GET /a%20b?c=d HTTP/1.1\r\nHost: A.test:81\r\nX-Forwarded-For: 192.0.2.7\r\nX-Forwarded-Proto: https\r\n\
         X-Request-Id: r1\r\nX-User: forged\r\nX_User: forged\r\nX-Real-IP: forged\r\nCookie: a=b; sid=s1\r\n\r\n",
    );
    let request = origin.last();
    for (name, wanted) in [
        ("x-real-ip", Some("192.0.2.7")),
        ("x-user", None),
        ("x_user", None),
        ("x-sid", Some("s1")),
        ("x-plain", Some("{x}")),
        ("x-all", Some("GET https://A.test/a%20b?c=d r1")),
    ] {
        assert_eq!(request.get(name), wanted, "{name}");
    }
    assert_eq!(answer.get("x-route"), Some("main route/A.test"));
}

#[test]
fn the_responses_of_a_route_itself_have_its_fields() {
    let setup = Setup::to(&[]).without("clusters").with(
        "routes",
        json!([
            {
                "name": "text",
                "respond": {"body": "{}"},
                "response_headers": {"set": {"Content-Type": "application/json", "X-Host": "{host}"}, "add": {"X-A": "b"}},
            },
            {
                "name": "away",
                "path": "/away",
                "redirect": {"location": "https://{host}/x"},
                "response_headers": {"set": {"Cache-Control": "no-store"}, "remove": ["x-request-id"]},
            },
        ]),
    );
    let Some(proxy) = setup.start() else { return };
    let answer = proxy.ask("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!(answer.all("content-type"), ["application/json"]);
    assert_eq!((answer.get("x-host"), answer.get("x-a"), answer.text()), (Some("a.test"), Some("b"), "{}"));
    let answer = proxy.ask("GET /away HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert_eq!((answer.status(), answer.get("location")), (302, Some("https://a.test/x")));
    assert_eq!((answer.get("cache-control"), answer.get("x-request-id")), (Some("no-store"), None));
}

#[test]
fn the_target_is_rewritten_and_prefixed() {
    let origin = Origin::saying("");
    let setup = Setup::to_origin(&origin).with(
        "routes",
        json!([
            {"cluster": "default"},
            {"name": "v2", "path_regex": "^/api/(?P<rest>.*)$", "rewrite": "/v2/${rest}", "cluster": "default"},
            {"name": "item", "path_regex": "^/item/([0-9]+)$", "rewrite": "/show?id=$1", "cluster": "default"},
            {"name": "more", "path": "/more/a/b", "add_prefix": "/under", "cluster": "default"},
            {"name": "seam", "path_regex": "^/static(.*)", "rewrite": "/files/$1", "cluster": "default"},
            {"name": "app", "path_prefix": "/app", "strip_prefix": true, "add_prefix": "/srv", "cluster": "default"},
        ]),
    );
    let Some(proxy) = setup.start() else { return };
    for (target, sent) in [
        ("/x?y", "/x?y"),
        ("/api/a%20b/c?d=e", "/v2/a%20b/c?d=e"),
        ("/api/../api//x", "/v2/x"),
        ("/item/42", "/show?id=42"),
        ("/item/42?a=b", "/show?id=42&a=b"),
        ("/app/x%2fy?z", "/srv/x%2fy?z"),
        ("/app", "/srv/"),
        ("/api/caf%E9/x", "/v2/caf%E9/x"),
        ("/%2e%2e/more/a%2fb?z", "/under/more/a/b?z"),
        ("/more/a%2fb", "/under/more/a%2fb"),
    ] {
        proxy.get(target);
        assert_eq!(origin.last().line, format!("GET {sent} HTTP/1.1"), "{target}");
    }
    assert_eq!(proxy.get("/static../secret").status(), 400);
}
