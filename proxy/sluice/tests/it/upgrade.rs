//! Another process takes over while requests are running.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};

use super::support::{Dead, Origin, Proxy, Setup, Wire, ok, poll, script};
pub(crate) use super::support::{Stray, upgrade, upgrade_with};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Whether a process has exited; without a waiting parent it may stay as a zombie.
fn has_ended(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

#[test]
fn ten_upgrades_under_load_cost_no_request() {
    let origin = Origin::saying("here");
    let Some(mut proxy) = Setup::to_origin(&origin).with("workers", 2).start() else { return };
    let (ended, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let ask = |kept: bool| {
        let mut wire = proxy.connect();
        while !ended.load(Ordering::Relaxed) {
            let answer = wire.ask(GET);
            assert_eq!((answer.status(), answer.text()), (200, "here"));
            asked.fetch_add(1, Ordering::Relaxed);
            if !kept || answer.get("connection") == Some("close") {
                wire = proxy.connect();
            }
        }
    };
    let last = std::thread::scope(|scope| {
        let _end = Guard(&ended);
        for kept in [true, true, false, false] {
            scope.spawn(move || ask(kept));
        }
        let mut last: Option<Stray> = None;
        for _ in 0..10 {
            let before = asked.load(Ordering::Relaxed);
            let next = upgrade(&proxy);
            if let Some(last) = last.replace(next) {
                poll("the previous process to exit", || has_ended(last.0).then_some(()));
            }
            poll("requests", || (asked.load(Ordering::Relaxed) > before + 20).then_some(()));
        }
        last
    });
    assert_eq!(proxy.wait().code(), Some(0), "the first one exits by itself");
    assert_eq!(proxy.get("/").text(), "here");
    assert!(last.is_some());
}

#[test]
fn the_engine_changes_with_an_upgrade() {
    let origin = Origin::saying("here");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    // Two of the three are not available if io_uring is denied.
    let engines = match proxy.said("io_uring is ") {
        0 => &["epoll", "tokio_uring", "epoll", "io_uring", "tokio_uring", "io_uring"][..],
        _ => &["epoll"],
    };
    let mut config = proxy.config.clone();
    let mut last: Option<Stray> = None;
    for engine in engines {
        let mut wire = proxy.connect();
        assert_eq!(wire.ask(GET).text(), "here");
        config["runtime"] = (*engine).into();
        proxy.rewrite(&config);
        let said = proxy.said(&format!("serving with {engine}"));
        let next = upgrade(&proxy);
        poll("the engine", || (proxy.said(&format!("serving with {engine}")) > said).then_some(()));
        assert_eq!(proxy.get("/").text(), "here", "{engine}");
        drop(wire);
        // Left alone until it exits: killing it while its ring accepts connections may lose one.
        if let Some(before) = last.replace(next) {
            poll("the previous process to exit", || has_ended(before.0).then_some(()));
        }
    }
    assert!(last.is_some());
}

/// Sets a flag when dropped, so that threads end even if an assertion fails.
struct Guard<'a>(&'a AtomicBool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_process_that_does_not_become_ready_changes_nothing() {
    let origin = Origin::saying("here");
    let Some(mut proxy) = Setup::to_origin(&origin).start() else { return };
    let refused = |proxy: &Proxy, arguments: &[&str], why: &str| {
        let (code, said) = proxy.command("upgrade", arguments);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(why), "{said:?} should contain {why:?}");
        assert_eq!(proxy.get("/").text(), "here");
    };
    refused(&proxy, &["--binary", "/nowhere/sluice"], "/nowhere/sluice cannot be started");
    refused(
        &proxy,
        &["--binary", "/bin/false"],
        "the new process exited before it was ready (exit status: 1)",
    );
    let sleeper = proxy.folder.join("sleeper");
    script(&sleeper, "#!/bin/sh\nexec sleep 1000\n");
    let sleeper = sleeper.display().to_string();
    refused(&proxy, &["--binary", &sleeper, "--timeout-ms", "200"], "was not ready after 200 ms");
    // Whatever it does to the control socket before it fails, commands reach the old process.
    let late = proxy.folder.join("late");
    let control = proxy.folder.join("control.sock");
    script(&late, &format!("#!/bin/sh\nrm '{}'\nexit 1\n", control.display()));
    refused(&proxy, &["--binary", &late.display().to_string()], "the new process exited before it was ready");
    proxy.rewrite("clusters: {}\n");
    refused(&proxy, &[], "the new process failed: ");
    proxy.rewrite(&proxy.config);
    assert!(proxy.is_running());
    let _next = upgrade(&proxy);
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!(proxy.get("/").text(), "here");
}

#[test]
fn everything_is_passed_to_the_new_process() {
    let origin = Origin::saying("here");
    let refusing = Dead::new();
    let dead = refusing.endpoint();
    let Some(mut proxy) = Setup::to(&[&origin.endpoint, &dead])
        .with("clusters.default.health_check", json!({"path": "/", "interval_ms": 50, "unhealthy_after": 1}))
        .with("admin", "127.0.0.1:0")
        .start()
    else {
        return;
    };
    let admin = proxy.admin_address().parse().unwrap();
    let clusters = || {
        let page = Wire::connect(admin).ask("GET /clusters HTTP/1.1\r\nHost: localhost\r\n\r\n");
        serde_json::from_slice::<Value>(&page.body).unwrap()[0]["endpoints"][1]["health"].clone()
    };
    poll("the dead one to be found", || (clusters() == "unhealthy").then_some(()));
    // State that a reload keeps.
    let mut config = proxy.config.clone();
    config["workers"] = json!(3);
    // Checks start too late to find it.
    config["clusters"]["default"]["health_check"]["unhealthy_after"] = json!(1000);
    config["listeners"].as_array_mut().unwrap().push(json!({"name": "more", "address": "127.0.0.1:0"}));
    proxy.rewrite(&config);
    let next = upgrade(&proxy);
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!(clusters(), "unhealthy", "known health is passed on");
    for _ in 0..9 {
        assert_eq!(proxy.get("/").text(), "here", "by either worker");
    }
    let more = proxy.added("more");
    assert_eq!(Wire::connect(more).ask(GET).text(), "here");
    let threads = std::fs::read_dir(format!("/proc/{}/task", next.0)).unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
    };
    assert_eq!(threads.map(name).filter(|name| name.starts_with("worker-")).count(), 3);
}

#[test]
fn a_running_exchange_finishes_in_the_old_process() {
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let origin = Origin::answering(move |request| {
        if request.target() == "/busy" {
            gate.lock().unwrap().recv().unwrap();
        }
        ok("here")
    });
    let Some(mut proxy) = Setup::to_origin(&origin).start() else { return };
    let (mut busy, mut idle) = (proxy.connect(), proxy.connect());
    assert_eq!(idle.ask(GET).status(), 200);
    busy.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n");
    poll("the request", || origin.requests().iter().any(|asked| asked.target() == "/busy").then_some(()));
    let _next = upgrade(&proxy);
    assert_eq!(proxy.get("/").text(), "here");
    // The command may return before the worker is notified.
    poll("a response with Connection: close", || {
        let answer = idle.ask(GET);
        assert_eq!((answer.status(), answer.text()), (200, "here"));
        (answer.get("connection") == Some("close")).then_some(())
    });
    assert!(proxy.is_running());
    go.send(()).unwrap();
    assert_eq!(busy.response().text(), "here");
    assert_eq!(proxy.wait().code(), Some(0));
}
