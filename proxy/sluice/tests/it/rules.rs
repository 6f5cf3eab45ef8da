//! What a route is for, who may use it, and what it makes of the target.

use serde_json::json;

use crate::support::{Origin, Setup, poll};

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

#[test]
fn a_condition_believes_no_field_that_the_application_would_not_get() {
    let setup = Setup::to(&[]).without("clusters");
    let users = setup.file("users", "ann:$2y$04$b98P4d49Kb8Twxx4H/x0cOJJ58hM9QOnqQUA/EuHIOp2EJ2vWiKFK\n");
    let needs = |name: &str, value: &str| json!([{"name": name, "value": value}]);
    let setup = setup.with(
        "routes",
        json!([
            {"path": "/cert", "headers": needs("X-Client-Cert-Verified", "SUCCESS"), "respond": says("in")},
            {"path": "/real", "headers": needs("X-Real-IP", "10.0.0.1"), "respond": says("in")},
            {"path": "/user", "headers": needs("X-User", "root"), "respond": says("in")},
            {"path": "/named", "respond": {"template": "[{header:x-user}]"}},
            {"path": "/set", "respond": says("set"), "auth": {"basic": {"file": users}}},
            {"path": "/role", "headers": needs("X-Role", "admin"), "respond": says("role")},
            {"path": "/not", "not": {"headers": needs("X-Role", "admin")}, "respond": says("in")},
            {"path": "/cookie", "respond": {"template": "{cookie:s}"}},
            {"respond": says("out")},
        ]),
    );
    let mut config = setup;
    config = config.with("clusters", json!({"c": {"endpoints": ["127.0.0.1:9"]}}));
    let Some(proxy) = config.start() else { return };
    let mut changed = proxy.config.clone();
    changed["routes"].as_array_mut().unwrap().push(json!({
        "name": "telling", "path": "/telling", "cluster": "c", "auth": {"basic": {"file": users}},
        "request_headers": {"set": {"X-User": "{auth_user}"}},
    }));
    assert_eq!(proxy.reload(&changed).0, Some(0));
    let forged = "X-Client-Cert-Verified: SUCCESS\r\nX-Real-IP: 10.0.0.1\r\nX-User: root\r\n";
    let get = |target: &str, fields: &str| {
        proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")).text().to_owned()
    };
    for (target, wanted) in [("/cert", "out"), ("/real", "out"), ("/user", "out"), ("/named", "[]")] {
        assert_eq!(get(target, forged), wanted, "{target}");
    }
    // Of several fields, one is enough: an application may use any of them, and in any spelling.
    for fields in ["X-Role: u\r\nX-Role: admin\r\n", "X-Role: admin\r\nx-role: u\r\n", "X_Role: admin\r\n"] {
        assert_eq!(get("/role", fields), "role", "{fields}");
        assert_eq!(get("/not", fields), "out", "{fields}");
    }
    assert_eq!(
        (get("/role", "X-Role: u\r\n"), get("/not", "X-Role: u\r\n")),
        ("out".to_owned(), "in".to_owned())
    );
    assert_eq!(get("/cookie", "Cookie: a=1\r\nCookie: s=2\r\n"), "2");
}

#[test]
fn a_redirect_without_a_host_is_no_redirect_to_a_part_of_the_path() {
    let setup = Setup::to(&[]).without("clusters").with(
        "routes",
        json!([
            {"path_prefix": "/port", "redirect": {"location": "https://{host}:8443{path}"}},
            {"redirect": {"location": "https://{host}{path}{query}"}},
        ]),
    );
    let Some(proxy) = setup.start() else { return };
    for request in [
        "GET /evil.test/x HTTP/1.0\r\n\r\n",
        "GET /evil.test/x HTTP/1.1\r\nHost:\r\n\r\n",
        "GET /port/x HTTP/1.0\r\n\r\n",
    ] {
        let answer = proxy.ask(request);
        assert_eq!((answer.status(), answer.get("location")), (400, None), "{request}");
    }
    assert_eq!(proxy.get("/a?b").status(), 302);
}

#[test]
fn errors_of_sluice_have_the_fields_that_protect_the_pages_of_a_route() {
    let setup = Setup::to(&["127.0.0.1:9"]);
    let users = setup.file("users", "ann:$2y$04$b98P4d49Kb8Twxx4H/x0cOJJ58hM9QOnqQUA/EuHIOp2EJ2vWiKFK\n");
    let headers = json!({
        "remove": ["X-Sluice-Reason"], "set": {"X-Frame-Options": "DENY", "Cache-Control": "public", "X-Path": "{path}"},
        "add": {"Content-Security-Policy": "default-src 'self'", "Expires": "x"},
    });
    let setup = setup.with(
        "routes",
        json!([
            {"path_prefix": "/login", "cluster": "default", "auth": {"basic": {"file": users}},
             "response_headers": headers},
            {"path_prefix": "/plain", "cluster": "default",
             "response_headers": {"set": {"X-Frame-Options": "DENY", "Cache-Control": "public"}}},
        ]),
    );
    let Some(proxy) = setup.start() else { return };
    for (target, status, path) in [("/login/x", 401, Some("/login/x")), ("/plain", 502, None)] {
        let answer = proxy.get(target);
        assert_eq!((answer.status(), answer.all("x-frame-options")), (status, vec!["DENY"]), "{target}");
        assert_eq!(
            (answer.all("cache-control"), answer.get("expires")),
            (vec!["no-store"], None),
            "{target}"
        );
        assert_eq!(answer.get("x-path"), path);
        assert!(answer.get("x-sluice-reason").is_some());
    }
    assert_eq!(proxy.get("/login").get("content-security-policy"), Some("default-src 'self'"));
}

#[test]
fn an_application_gets_no_dot_segments_that_lead_around_a_rule() {
    let origin = Origin::saying("hello");
    let Some(proxy) = Setup::to_origin(&origin)
        .with(
            "routes",
            json!([
                {"path_prefix": "/staff", "respond": {"status": 403}},
                {"cluster": "default"},
            ]),
        )
        .start()
    else {
        return;
    };
    for (target, sent) in [
        ("/staff/../x?a=/../b", "/x?a=/../b"),
        ("/staff/%2e%2e/x", "/x"),
        ("/a/./b", "/a/b"),
        ("/a%2fb//c", "/a%2fb//c"),
        ("/a...b/..c", "/a...b/..c"),
    ] {
        assert_eq!(proxy.get(target).status(), 200, "{target}");
        assert_eq!(origin.last().target(), sent, "{target}");
    }
    assert_eq!(proxy.get("/x/../staff").status(), 403);
}

#[test]
fn access_of_a_path_holds_whatever_the_route_and_its_files_are_watched() {
    let origin = Origin::saying("hello");
    let setup = Setup::to_origin(&origin);
    let (offices, blocked) = (setup.file("offices", "# ours\n10.1.0.0/16\n"), setup.file("blocked", ""));
    let setup = setup
        .with("trusted_proxies", json!(["127.0.0.1"]))
        .with(
            "access",
            json!([{"path_prefix": ["/admin"], "allow_files": [offices], "allow": ["10.2.0.0/16"]},
                   {"deny_files": [blocked]}]),
        )
        .with(
            "routes",
            json!([{"path_regex": "^/(admin/)?x", "cluster": "default"}, {"cluster": "default"}]),
        );
    let Some(proxy) = setup.start() else { return };
    let get = |client: &str, target: &str| {
        proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n")).status()
    };
    for (client, target, status) in [
        ("10.1.0.1", "/admin/x", 200),
        ("10.2.0.1", "/admin/x", 200),
        ("10.3.0.1", "/admin/x", 403),
        ("10.3.0.1", "//a/../%61dmin/x", 403),
        ("10.3.0.1", "/x", 200),
    ] {
        assert_eq!(get(client, target), status, "{client} {target}");
    }
    std::fs::write(&blocked, "10.3.0.0/16\n").unwrap();
    poll("the new list", || (get("10.3.0.1", "/x") == 403).then_some(()));
    std::fs::write(&blocked, "10.3.0.0/16\noops\n").unwrap();
    proxy.wait_for("a list of networks cannot be used, and stays as it was");
    assert_eq!(get("10.3.0.1", "/x"), 403);
    let (code, said) = proxy.reload(&proxy.config);
    assert!(code != Some(0) && said.contains("access[1].deny_files") && said.contains("line 2"), "{said}");
    std::fs::write(&blocked, "").unwrap();
    poll("the list without it", || (get("10.3.0.1", "/x") == 200).then_some(()));
}

#[test]
fn a_check_names_every_file_that_cannot_be_used() {
    let setup = Setup::to(&["127.0.0.1:9"]);
    let (users, keys, list) =
        (setup.file("users", "ann:plain\n"), setup.file("keys", "nothing"), setup.file("list", "oops\n"));
    let (code, said) = setup
        .with("access", json!([{"deny_files": [list, "/nowhere/list"]}]))
        .with(
            "routes",
            json!([
                {"path": "/a", "cluster": "default", "auth": {"basic": {"file": users}}},
                {"path": "/b", "cluster": "default", "auth": {"jwt": {"keys_file": keys}}},
                {"path": "/c", "cluster": "default", "access": {"allow_files": ["/dev/zero"]}},
            ]),
        )
        .fails();
    assert_eq!(code, Some(1), "{said}");
    for part in [
        "routes[0].auth.basic.file: ",
        "routes[1].auth.jwt.keys_file: ",
        "routes[2].access.allow_files: /dev/zero: not a regular file",
        "access[0].deny_files: ",
        "/nowhere/list: No such file",
        "line 1: \"oops\" is not an address",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("plain\n"), "{said}");
}
