//! How a service changes heads, and which of their fields it logs.

use super::*;

#[test]
fn requested_fields_are_logged() {
    let app = Origin::answering(|request| {
        match request.target() {
        "/up" => ok(""),
        _ => b"HTTP/1.1 201 Created\r\nCache-Control: public, max-age=3600\r\nX-Custom: goodbye\r\nX-CUSTOM: twice\r\n\
               Content-Length: 2\r\n\r\nhi"
            .to_vec(),
    }
    });
    let Some(proxy) = setup(&app).start() else { return };
    let logged = "--log-request-header X-Custom,Missing --log-response-header Cache-Control --log-response-header x-custom";
    done(&proxy, &format!("deploy web --target {} --host svc.test {logged}", app.endpoint));
    let long = "v".repeat(1100);
    for (target, value, wanted) in
        [("/short", "hello \"quoted\"", "hello \"quoted\""), ("/long", &long, &long[..1024])]
    {
        let answer =
            proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: svc.test\r\nx-custom: {value}\r\n\r\n"));
        assert_eq!(answer.status(), 201);
        let record = proxy.record(target);
        assert_eq!((&record["req_x_custom"], &record["req_missing"]), (&wanted.into(), &"".into()));
        let (cached, custom) = (&record["resp_cache_control"], &record["resp_x_custom"]);
        assert_eq!((cached, custom), (&"public, max-age=3600".into(), &"goodbye,twice".into()));
    }
    done(&proxy, "stop web");
    assert_eq!(ask(&proxy, "/stopped").status(), 503);
    assert_eq!(proxy.record("/stopped")["resp_x_custom"], "");
    proxy.ask("GET /file HTTP/1.1\r\nHost: file.test\r\n\r\n");
    assert!(
        proxy.record("/file").get("req_x_custom").is_none(),
        "routes of the file do not log these fields"
    );
    let many = format!(
        "deploy web --target {} --host svc.test --log-request-header {}a",
        app.endpoint,
        "a,".repeat(32)
    );
    let (code, said) = sluice(&proxy, &many);
    assert_eq!((code, said.as_str()), (Some(1), "Error: log-request-header takes 32 fields at most\n"));
}

#[test]
fn a_service_gets_no_identity_from_its_clients() {
    let app = app("app");
    let setup = setup(&app);
    let users = setup.file("users", "ann:$2y$04$b98P4d49Kb8Twxx4H/x0cOJJ58hM9QOnqQUA/EuHIOp2EJ2vWiKFK\n");
    let guarded = json!([{
        "name": "file", "hosts": ["file.test"], "cluster": "default", "auth": {"basic": {"file": users}},
        "request_headers": {"set": {"X-User": "{auth_user}"}},
    }]);
    let Some(proxy) = setup.with("routes", guarded).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", app.endpoint));
    let forged = "X-User: root\r\nx_user: root\r\n";
    proxy.ask(format!(
        "POST /in HTTP/1.1\r\nHost: svc.test\r\n{forged}Transfer-Encoding: chunked\r\nTrailer: X-User\r\n\r\n\
         0\r\n{forged}\r\n"
    ));
    let seen = app.requests().into_iter().rfind(|request| request.target() == "/in").unwrap();
    assert_eq!((seen.get("x-user"), seen.get("x_user")), (None, None));
}

#[test]
fn paths_of_cookies_follow_the_prefix() {
    // From kamal-proxy's router tests.
    let cookies = |one: &str| format!("HTTP/1.1 200 OK\r\n{one}Content-Length: 0\r\n\r\n").into_bytes();
    let something =
        Origin::answering(move |_| cookies("Set-Cookie: session=secret; Path=/something; HttpOnly\r\n"));
    let root = Origin::answering(move |_| cookies("Set-Cookie: session=secret; Path=/; HttpOnly\r\n"));
    let several = Origin::answering(move |_| {
        cookies(
            "Set-Cookie: first_party=value1; Path=/original; Domain=svc.test\r\n\
             Set-Cookie: third_party=value2; Path=/original; Domain=other.com\r\n\
             Set-Cookie: no_domain=value3; Path=/original\r\n",
        )
    });
    let Some(proxy) = setup(&something).start() else { return };
    let deploy = |name: &str, origin: &Origin, flags: &str| {
        done(&proxy, &format!("deploy {name} --target {} --host svc.test {flags}", origin.endpoint));
    };
    let given = |target: &str| -> Vec<String> {
        let answer = proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: svc.test:8080\r\n\r\n"));
        answer.all("set-cookie").into_iter().map(str::to_owned).collect()
    };
    let session = |path: &str| vec![format!("session=secret; Path={path}; HttpOnly")];
    for (scoped, app, api, chat) in [
        ("--scope-cookie-paths", "/app/something", "/api/something", "/chat"),
        ("--scope-cookie-paths=false", "/something", "/something", "/"),
    ] {
        deploy("one", &something, &format!("--path-prefix /api,/app {scoped}"));
        deploy("two", &root, &format!("--path-prefix /chat {scoped}"));
        let all = [given("/app"), given("/api"), given("/chat")];
        assert_eq!(all, [session(app), session(api), session(chat)], "{scoped}");
    }
    deploy("one", &several, "--path-prefix /api --scope-cookie-paths");
    let wanted = [
        "first_party=value1; Path=/api/original; Domain=svc.test",
        "third_party=value2; Path=/original; Domain=other.com",
        "no_domain=value3; Path=/api/original",
    ];
    assert_eq!(given("/api/test"), wanted);
    deploy("one", &something, "--path-prefix /api --scope-cookie-paths --strip-path-prefix=false");
    assert_eq!(given("/api"), session("/something"), "nothing was removed");
    deploy("one", &something, "--scope-cookie-paths --buffer-responses");
    assert_eq!(given("/"), session("/something"));
}

#[test]
fn each_target_gets_its_name() {
    let echo = || Origin::answering(|request| ok(request.get("x-kamal-target").unwrap_or_default()));
    let (one, two) = (echo(), echo());
    let Some(proxy) = setup(&one).start() else { return };
    let targets = format!("{},{}", one.endpoint, two.endpoint);
    done(&proxy, &format!("deploy web --target {targets} --host svc.test --force"));
    let mut told: Vec<String> = (0..4).map(|_| said(&ask(&proxy, "/"))).collect();
    told.sort();
    let mut wanted = [&one.endpoint, &one.endpoint, &two.endpoint, &two.endpoint].map(String::clone);
    wanted.sort();
    assert_eq!(told, wanted);
    done(&proxy, &format!("disable web {}", two.endpoint));
    let claimed = "POST / HTTP/1.1\r\nHost: svc.test\r\nX-Kamal-Target: a\r\nx-kamal-target: b\r\nContent-Length: 2\r\n\r\nhi";
    assert_eq!(proxy.ask(claimed).text(), format!("a, b, {}", one.endpoint));
    assert_eq!(one.last().body, b"hi");
    done(
        &proxy,
        &format!("deploy web --target {} --host svc.test --force --forward-headers=false", two.endpoint),
    );
    assert_eq!(proxy.ask(claimed).text(), two.endpoint);
}

#[test]
fn a_retried_request_names_the_next_target() {
    // Each connection serves once, and closes at the next request.
    let once = || {
        Origin::playing(|mut peer| {
            if peer.next().is_some() {
                peer.send(ok("served"));
                let _ = peer.next();
            }
        })
    };
    let (one, two) = (once(), once());
    let Some(proxy) = setup(&one).start() else { return };
    let targets = format!("{},{}", one.endpoint, two.endpoint);
    done(
        &proxy,
        &format!("deploy web --target {targets} --host svc.test --force --health-check-interval 1h"),
    );
    for index in 0..6 {
        let target = format!("/{index}");
        assert_eq!(ask(&proxy, &target).text(), "served");
    }
    let retried = (0..6).filter(|index| proxy.record(&format!("/{index}"))["retries"] == 1).count();
    assert!(retried > 0);
    for origin in [&one, &two] {
        let asked = origin.requests();
        let told = asked
            .iter()
            .filter(|request| request.target() != "/up")
            .map(|request| request.all("x-kamal-target"));
        told.for_each(|told| assert_eq!(told, [&origin.endpoint]));
    }
}
