//! Several targets, readers, and a rollout for a share of the users.

use super::*;
use crate::support::poll;

fn with_cookie(proxy: &Proxy, method: &str, cookie: &str) -> Message {
    proxy.ask(format!(
        "{method} / HTTP/1.1\r\nHost: svc.test\r\nCookie: {cookie}\r\nContent-Length: 0\r\n\r\n"
    ))
}

#[test]
fn a_rollout_applies_to_chosen_users() {
    let (all, some) = (app("all"), app("some"));
    let Some(proxy) = setup(&all).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", all.endpoint));
    let (code, said_no) = sluice(&proxy, "rollout set web --percent 10");
    assert_eq!((code, said_no.as_str()), (Some(1), "Error: rollout target not set\n"));
    done(&proxy, &format!("rollout deploy web --target {}", some.endpoint));
    let of = |value: &str| said(&with_cookie(&proxy, "GET", &format!("kamal-rollout={value}")));
    assert_eq!(of("anna"), "all", "no user is sent there yet");
    done(&proxy, "rollout set web --percent 0 --list anna");
    assert_eq!(
        (of("anna"), of("otto"), said(&ask(&proxy, "/"))),
        ("some".into(), "all".into(), "all".into())
    );
    done(&proxy, "rollout set web --percent 100");
    assert_eq!((of("otto"), said(&ask(&proxy, "/"))), ("some".into(), "all".into()));
    done(&proxy, "rollout stop web");
    assert_eq!(of("otto"), "all");
}

#[test]
fn readers_get_only_reads() {
    let writer = Origin::answering(|request| match request.target() {
        "/up" => ok(""),
        "/own" => b"HTTP/1.1 200 OK\r\nX-Writer-Affinity: false\r\nContent-Length: 6\r\n\r\nwriter".to_vec(),
        _ => ok("writer"),
    });
    let reader = app("reader");
    let Some(proxy) = setup(&writer).start() else { return };
    done(
        &proxy,
        &format!(
            "deploy web --target {} --read-target {} --host svc.test --writer-affinity-timeout 1m --health-check-interval 20ms",
            writer.endpoint, reader.endpoint
        ),
    );
    assert_eq!(said(&ask(&proxy, "/")), "reader");
    let written = with_cookie(&proxy, "POST", "a=1");
    assert_eq!(said(&written), "writer");
    let cookie = written.get("set-cookie").unwrap();
    assert!(cookie.starts_with("kamal-writer=") && cookie.ends_with("; HttpOnly"), "{cookie}");
    assert_eq!(said(&with_cookie(&proxy, "GET", cookie.split(';').next().unwrap())), "writer");
    let own = proxy.ask("POST /own HTTP/1.1\r\nHost: svc.test\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((own.get("set-cookie"), own.get("x-writer-affinity")), (None, None));
}

#[test]
fn targets_take_turns_and_unhealthy_ones_are_skipped() {
    let healthy = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let shared = std::sync::Arc::clone(&healthy);
    let one = Origin::answering(move |request| match request.target() {
        "/up" if !shared.load(std::sync::atomic::Ordering::Relaxed) => {
            b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n".to_vec()
        }
        "/up" => ok(""),
        _ => ok("one"),
    });
    let two = app("two");
    let Some(proxy) = setup(&one).start() else { return };
    let targets = format!("{},{}", one.endpoint, two.endpoint);
    done(&proxy, &format!("deploy web --target {targets} --host svc.test --health-check-interval 20ms"));
    let mut turns: Vec<String> = (0..4).map(|_| said(&ask(&proxy, "/"))).collect();
    turns.sort();
    assert_eq!(turns, ["one", "one", "two", "two"]);
    healthy.store(false, std::sync::atomic::Ordering::Relaxed);
    poll("the sick target to be left out", || {
        (0..10).all(|_| said(&ask(&proxy, "/")) == "two").then_some(())
    });
    let (_, table) = sluice(&proxy, "list");
    assert!(table.contains(&targets), "{table}");
}

#[test]
fn a_service_may_have_its_own_queue() {
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let app = Origin::answering(move |request| {
        if request.target() != "/up" {
            gate.lock().unwrap().recv().unwrap();
        }
        ok("app")
    });
    let Some(proxy) = setup(&app).start() else { return };
    done(
        &proxy,
        &format!("deploy web --target {} --host svc.test --max-in-flight 1 --queue-size 1", app.endpoint),
    );
    let mut clients: Vec<Wire> = (0..2).map(|_| proxy.connect()).collect();
    clients[0].send(get("/first"));
    poll("the first at the target", || (app.last().target() == "/first").then_some(()));
    clients[1].send(get("/second"));
    poll("the second in the queue", || {
        (proxy.metric("sluice_queue_length{cluster=\"web\"}") >= 1.0).then_some(())
    });
    assert_eq!(ask(&proxy, "/third").status(), 503);
    assert_eq!(proxy.outcome("/third"), (503, "queue_full".to_owned()));
    for client in &mut clients {
        go.send(()).unwrap();
        assert_eq!(client.response().text(), "app");
    }
}
