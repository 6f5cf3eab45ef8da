//! Deploys: the switch in one step, failed deploys, the drain, and fifty deploys under load.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use super::*;
use crate::support::{Dead, assert_same, pattern, poll};

#[test]
fn requests_go_to_the_new_target_once_it_is_healthy() {
    let (file, old, new) = (Origin::saying("file"), app("old"), app("new"));
    let Some(proxy) = setup(&file).start() else { return };
    assert_eq!(ask(&proxy, "/").status(), 404);
    done(&proxy, &format!("deploy web --target {} --host svc.test", old.endpoint));
    let mut kept = proxy.connect();
    assert_eq!(kept.ask(get("/")).text(), "old");
    done(&proxy, &format!("deploy web --target {} --host svc.test", new.endpoint));
    assert_eq!(kept.ask(get("/")).text(), "new", "the connection is kept");
    assert_eq!(new.requests().iter().filter(|request| request.target() != "/up").count(), 1);
    assert_eq!(old.requests().iter().filter(|request| request.target() != "/up").count(), 1);
    assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: file.test\r\n\r\n").text(), "file");
    ask(&proxy, "/logged");
    let record = proxy.record("/logged");
    assert_eq!((&record["route"], &record["cluster"]), (&"web".into(), &"web".into()));
}

#[test]
fn options_cannot_inject_head_lines() {
    let app = app("app");
    let Some(proxy) = setup(&app).start() else { return };
    for flag in ["--health-check-path", "--health-check-host", "--canonical-host", "--client-ip-header"] {
        let mut command = command(&proxy, &format!("deploy web --target {}", app.endpoint));
        let output = command.args([flag, "a\r\nX-Other: b"]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let name = flag.trim_start_matches('-');
        assert_eq!(
            said,
            format!("Error: {name}: use ASCII without blanks; percent-encode other characters\n")
        );
    }
    assert!(app.requests().is_empty());
}

#[test]
fn the_application_gets_the_expected_head() {
    let app = app("app");
    let Some(proxy) = setup(&app).start() else { return };
    done(
        &proxy,
        &format!("deploy web --target {} --path-prefix /api --client-ip-header True-Client-IP", app.endpoint),
    );
    proxy.ask(
        "GET /api/users/123?a;b HTTP/1.1\r\nHost: any.test:8080\r\nX-Forwarded-For: 198.51.100.7\r\n\
         X-Forwarded-Proto: https\r\nX-Kamal-Target: first\r\nX-Client-Cert-Subject: CN=admin\r\n\r\n",
    );
    let request = app.last();
    assert_eq!((request.target(), request.get("host")), ("/users/123?a;b", Some("any.test:8080")));
    assert_eq!(request.get("x-forwarded-for"), Some("198.51.100.7, 127.0.0.1"));
    assert_eq!(request.get("x-forwarded-proto"), Some("https"));
    assert_eq!(request.get("x-client-cert-subject"), None, "only a trusted proxy may say that");
    assert_eq!(request.get("x-kamal-target"), Some(format!("first, {}", app.endpoint).as_str()));
    proxy.ask("GET /api HTTP/1.1\r\nHost: a\r\nTrue-Client-IP: 203.0.113.5\r\n\r\n");
    assert_eq!(app.last().get("x-forwarded-for"), Some("203.0.113.5, 127.0.0.1"));
    let target = &app.endpoint;
    done(
        &proxy,
        &format!(
            "deploy web --target {target} --path-prefix /api --strip-path-prefix=false --forward-headers=false"
        ),
    );
    proxy.ask("GET /api/x HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.7\r\n\r\n");
    let request = app.last();
    assert_eq!((request.target(), request.get("x-forwarded-for")), ("/api/x", Some("127.0.0.1")));
}

#[test]
fn a_service_may_buffer_bodies() {
    let app = app("app");
    let Some(proxy) = setup(&app).start() else { return };
    let buffers = "--buffer-requests --buffer-responses --max-request-body 8";
    done(&proxy, &format!("deploy web --target {} --host svc.test {buffers}", app.endpoint));
    let post = |body: &str| {
        let head = "POST / HTTP/1.1\r\nHost: svc.test\r\nTransfer-Encoding: chunked\r\n\r\n";
        proxy.ask(format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()))
    };
    assert_eq!(said(&post("12345678")), "app");
    assert_eq!(app.last().get("content-length"), Some("8"), "it was complete before it was sent");
    assert_eq!(post("123456789").status(), 413);
}

#[test]
fn a_failed_deploy_changes_nothing() {
    let old = app("old");
    let sick = Origin::answering(|_| b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".to_vec());
    let dead = Dead::new();
    let Some(proxy) = setup(&old).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", old.endpoint));
    let state = std::fs::read_to_string(proxy.folder.join("services.json")).unwrap();
    for (target, why) in [
        (sick.endpoint.clone(), "status 500"),
        (dead.endpoint(), "connecting failed: Connection refused (os error 111)"),
        ("nowhere.invalid:1".to_owned(), "the name does not resolve"),
    ] {
        let line = format!(
            "deploy web --target {target} --host svc.test --deploy-timeout 2s --health-check-interval 50ms"
        );
        let wanted = format!(
            "Error: target failed to become healthy within configured timeout (2s)\n{target}: {why}\n"
        );
        assert_eq!(sluice(&proxy, &line), (Some(1), wanted));
    }
    let line = format!("deploy other --target {} --host svc.test --force", sick.endpoint);
    let conflict = "Error: host settings conflict with another service\n";
    assert_eq!(sluice(&proxy, &line), (Some(1), conflict.to_owned()));
    let line = format!("deploy file --target {} --host new.test --force", sick.endpoint);
    let in_file = "Error: the configuration file has a route \"file\"; deploy under another name\n";
    assert_eq!(sluice(&proxy, &line), (Some(1), in_file.to_owned()));
    let (code, said_tls) =
        sluice(&proxy, &format!("deploy web --target {} --host svc.test --tls", old.endpoint));
    assert!(
        code == Some(1) && said_tls.starts_with("Error: --tls: no listener terminates TLS for services"),
        "{said_tls}"
    );
    assert_eq!(said(&ask(&proxy, "/")), "old");
    assert_eq!(std::fs::read_to_string(proxy.folder.join("services.json")).unwrap(), state);
}

/// An application that responds to /busy only when told to.
fn slow() -> (Origin, std::sync::mpsc::Sender<()>) {
    let (go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let origin = Origin::answering(move |request| {
        if request.target() == "/busy" {
            let _ = gate.lock().unwrap().recv();
        }
        ok("slow")
    });
    (origin, go)
}

#[test]
fn a_deploy_waits_for_running_requests() {
    let ((old, go), new) = (slow(), app("new"));
    let Some(proxy) = setup(&new).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", old.endpoint));
    let mut client = proxy.connect();
    client.send(get("/busy"));
    poll("the request at the old target", || (old.last().target() == "/busy").then_some(()));
    let mut deploy =
        command(&proxy, &format!("deploy web --target {} --host svc.test", new.endpoint)).spawn().unwrap();
    poll("the switch", || (said(&ask(&proxy, "/")) == "new").then_some(()));
    assert!(deploy.try_wait().unwrap().is_none(), "it waits for running requests");
    go.send(()).unwrap();
    assert_eq!(client.response().text(), "slow");
    assert!(deploy.wait().unwrap().success());
}

#[test]
fn a_drain_times_out_and_ends_tunnels_at_once() {
    let ((old, _go), new) = (slow(), app("new"));
    let chat = Origin::playing(|mut peer| {
        while let Some(request) = peer.next() {
            match request.target() {
                "/up" => peer.send(ok("")),
                _ => {
                    peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
                    let _ = peer.rest();
                    return;
                }
            }
        }
    });
    let Some(proxy) = setup(&new).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", old.endpoint));
    let mut client = proxy.connect();
    client.send(get("/busy"));
    poll("the request at the old target", || (old.last().target() == "/busy").then_some(()));
    done(&proxy, &format!("deploy web --target {} --host svc.test --drain-timeout 200ms", chat.endpoint));
    assert_eq!(client.response().status(), 504);
    assert_eq!(proxy.outcome("/busy"), (504, "target_drained".to_owned()));
    let mut tunnel = proxy.connect();
    tunnel.send("GET /ws HTTP/1.1\r\nHost: svc.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(tunnel.head().status(), 101);
    // The drain timeout is longer than the test waits.
    done(&proxy, &format!("deploy web --target {} --host svc.test --drain-timeout 1h", new.endpoint));
    assert!(is_closed(&mut tunnel));
}

/// Also when the first half uses direct return; sluice must then see that nothing may follow it.
#[test]
fn a_drain_cuts_a_running_response() {
    const HALF: usize = 100_000;
    let old = Origin::playing(|mut peer| {
        while let Some(request) = peer.next() {
            if request.target() != "/half" {
                peer.send(ok("old"));
                continue;
            }
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 2 * HALF));
            peer.send(pattern(HALF));
            let _ = peer.rest();
            return;
        }
    });
    let new = app("new");
    let Some(proxy) = setup(&new).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", old.endpoint));
    let mut client = proxy.connect();
    for _ in 0..3 {
        assert_eq!(client.ask(get("/")).text(), "old");
    }
    client.send(get("/half"));
    assert_eq!(client.head().status(), 200);
    assert_same(&client.take(HALF), &pattern(HALF));
    done(&proxy, &format!("deploy web --target {} --host svc.test --drain-timeout 200ms", new.endpoint));
    assert_eq!(client.rest().0, b"", "nothing follows the cut response");
    assert_eq!(proxy.outcome("/half"), (200, "target_drained".to_owned()));
}

#[test]
fn fifty_deploys_under_load_lose_no_request() {
    let (one, two) = (app("one"), app("two"));
    let Some(proxy) = setup(&one).start() else { return };
    let deploy = |target: &Origin| {
        done(
            &proxy,
            &format!("deploy web --target {} --host svc.test --health-check-interval 20ms", target.endpoint),
        );
    };
    deploy(&one);
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    // By name, the round in which it was drained.
    let drained: Mutex<HashMap<&str, usize>> = Mutex::default();
    std::thread::scope(|scope| {
        for keeps in [true, true, false, false] {
            let (proxy, stop, answered, drained) = (&proxy, &stop, &answered, &drained);
            scope.spawn(move || {
                let mut wire = proxy.connect();
                while !stop.load(Ordering::Relaxed) {
                    if !keeps {
                        wire = proxy.connect();
                    }
                    let before = drained.lock().unwrap().clone();
                    let answer = wire.ask(get("/load"));
                    assert_eq!(answer.status(), 200);
                    // A target that had been drained before the request was sent, and was not deployed since, must not
                    // respond.
                    let text = answer.text();
                    let after = drained.lock().unwrap().clone();
                    let stale = before.get(text).is_some_and(|round| after.get(text) == Some(round));
                    assert!(!stale, "response of {text}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..50 {
            let (target, name, other) =
                if round % 2 == 0 { (&two, "two", "one") } else { (&one, "one", "two") };
            drained.lock().unwrap().remove(name);
            deploy(target);
            drained.lock().unwrap().insert(other, round);
            let before = answered.load(Ordering::Relaxed);
            poll("some responses", || (answered.load(Ordering::Relaxed) > before + 20).then_some(()));
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(answered.load(Ordering::Relaxed) >= 1000);
}
