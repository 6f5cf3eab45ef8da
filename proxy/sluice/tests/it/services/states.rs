//! Paused, stopped, resumed, removed, restarted.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::sys::signal::Signal;

use super::*;
use crate::support::poll;

/// Whether `list` shows this state.
fn is(proxy: &Proxy, state: &str) -> bool {
    let (code, table) = sluice(proxy, "list");
    assert_eq!(code, Some(0), "{table}");
    table.lines().any(|line| line.split_whitespace().any(|word| word == state))
}

#[test]
fn a_pause_delays_requests_and_none_fails() {
    let (old, new) = (app("old"), app("new"));
    let Some(proxy) = setup(&old).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", old.endpoint));
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(ask(&proxy, "/load").status(), 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        done(&proxy, "pause web");
        assert!(is(&proxy, "paused"));
        let mut held = proxy.connect();
        held.send(get("/held"));
        assert_eq!(
            ask(&proxy, "/up").status(),
            200,
            "health checks of a proxy in front of sluice are answered"
        );
        let before = old.requests().len();
        // Paused requests go to the target that serves when the pause ends.
        done(&proxy, &format!("deploy web --target {} --host svc.test", new.endpoint));
        assert!(is(&proxy, "paused"), "a deploy does not end a pause");
        done(&proxy, "resume web");
        assert_eq!(held.response().text(), "new");
        assert_eq!(old.requests().len(), before);
        let resumed = served.load(Ordering::Relaxed);
        poll("more responses", || (served.load(Ordering::Relaxed) > resumed + 10).then_some(()));
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_paused_request_times_out_with_504() {
    let app = app("app");
    let Some(proxy) = setup(&app).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", app.endpoint));
    done(&proxy, "pause web --max-pause 50ms");
    assert_eq!(ask(&proxy, "/late").status(), 504);
    assert_eq!(proxy.outcome("/late"), (504, "pause_timeout".to_owned()));
    let mut gone = proxy.connect();
    done(&proxy, "pause web --max-pause 1h");
    gone.send(get("/gone"));
    gone.reset();
    assert_eq!(proxy.outcome("/gone"), (499, "client_gone".to_owned()));
}

#[test]
fn a_client_that_is_refused_during_a_pause_is_refused_after_it() {
    let app = app("app");
    let Some(proxy) = setup(&app).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", app.endpoint));
    done(&proxy, "pause web");
    let mut held = proxy.connect();
    held.send(get("/held"));
    // Later on the same worker, so the first one waits by now.
    assert_eq!(ask(&proxy, "/up").status(), 200);
    let mut config = proxy.config.clone();
    config["access"] = json!([{"hosts": ["svc.test"], "deny": ["127.0.0.0/8"]}]);
    let (code, said) = proxy.reload(&config);
    assert_eq!(code, Some(0), "{said}");
    let before = app.requests().len();
    done(&proxy, "resume web");
    assert_eq!(held.response().status(), 403);
    assert_eq!(app.requests().len(), before);
    assert_eq!(proxy.outcome("/held"), (403, "access_denied".to_owned()));
}

#[test]
fn excluded_paths_are_not_counted() {
    let app = app("app");
    let Some(proxy) = setup(&app).start() else { return };
    done(
        &proxy,
        &format!("deploy web --target {} --host svc.test --exclude-metrics-path /quiet", app.endpoint),
    );
    for target in ["/loud", "/quiet", "/quiet?x"] {
        assert_eq!(ask(&proxy, target).status(), 200);
        proxy.record(target);
    }
    let page = proxy.admin("/metrics");
    let requests = |line: &&str| {
        line.starts_with("sluice_requests_total{") && line.contains("route=\"web\"") && line.contains("2xx")
    };
    let counts: Vec<&str> =
        page.text().lines().filter(requests).filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(counts, ["1"], "{}", page.text());
}

#[test]
fn clients_of_a_stopped_service_get_the_message() {
    let app = app("app");
    let setup = setup(&app);
    let pages = setup.folder.join("pages");
    std::fs::create_dir(&pages).unwrap();
    std::fs::write(pages.join("503.html"), "<p>{{ if .Message }}{{ .Message }}{{ else }}soon{{ end }}</p>")
        .unwrap();
    let Some(proxy) = setup.start() else { return };
    let target = &app.endpoint;
    done(&proxy, &format!("deploy web --target {target} --host svc.test"));
    done(&proxy, "stop web --message <gone>");
    assert!(is(&proxy, "stopped"));
    let plain = ask(&proxy, "/");
    assert_eq!((plain.status(), plain.text()), (503, "503 Service Unavailable <gone>\n"));
    let html = proxy.ask("GET / HTTP/1.1\r\nHost: svc.test\r\nAccept: text/html\r\n\r\n");
    assert!(html.text().contains("<p>&lt;gone&gt;</p>"), "{}", html.text());
    done(&proxy, &format!("deploy web --target {target} --host svc.test --error-pages {}", pages.display()));
    assert_eq!(ask(&proxy, "/").text(), "<p>&lt;gone&gt;</p>");
    done(&proxy, "stop web");
    assert_eq!(ask(&proxy, "/").text(), "<p>soon</p>");
    done(&proxy, "resume web");
    assert_eq!(ask(&proxy, "/").text(), "app");
    done(&proxy, "remove web");
    assert_eq!(ask(&proxy, "/").status(), 404);
    assert_eq!(sluice(&proxy, "rm web"), (Some(1), "Error: service not found\n".to_owned()));
}

#[test]
fn services_survive_a_restart() {
    let (app, other) = (app("app"), app("other"));
    let setup = setup(&app);
    let state = setup.folder.join("services.json");
    let Some(mut proxy) = setup.start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", app.endpoint));
    done(&proxy, &format!("deploy paused --target {} --host paused.test", other.endpoint));
    done(&proxy, "stop paused --message later");
    let (_, table) = sluice(&proxy, "list");
    let kept = std::fs::read_to_string(&state).unwrap();
    proxy.signal(Signal::SIGTERM);
    proxy.wait();
    drop(proxy);
    let again = self::setup(&app);
    std::fs::write(again.folder.join("services.json"), &kept).unwrap();
    let Some(proxy) = again.start() else { return };
    assert_eq!(ask(&proxy, "/").text(), "app");
    assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: paused.test\r\n\r\n").status(), 503);
    assert_eq!(sluice(&proxy, "list"), (Some(0), table));
    // A reload keeps the services, and is refused if it conflicts with them.
    let (code, said) = proxy.reload(&proxy.config);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(ask(&proxy, "/").text(), "app");
    let mut config = proxy.config.clone();
    config["routes"][0]["hosts"] = json!(["svc.test"]);
    let (code, said) = proxy.reload(&config);
    assert!(code == Some(2) && said.contains("conflict with the deployed service \"web\""), "{said}");
    assert_eq!(ask(&proxy, "/").text(), "app");
}

#[test]
fn a_damaged_state_file_is_set_aside() {
    let app = app("app");
    let setup = setup(&app);
    std::fs::write(setup.folder.join("services.json"), "{\"version\": 1").unwrap();
    let Some(proxy) = setup.start() else { return };
    assert_eq!(proxy.said("cannot restore the deployed services"), 1);
    assert_eq!(ask(&proxy, "/").status(), 404);
    assert!(proxy.folder.join("services.json.damaged").exists());
    done(&proxy, &format!("deploy web --target {} --host svc.test", app.endpoint));
    assert_eq!(ask(&proxy, "/").text(), "app");
}

#[test]
fn services_survive_an_upgrade() {
    let (app, new) = (app("app"), app("new"));
    let Some(mut proxy) = setup(&app).start() else { return };
    done(&proxy, &format!("deploy web --target {} --host svc.test", app.endpoint));
    let _other = crate::upgrade::upgrade(&proxy);
    proxy.wait();
    assert_eq!(ask(&proxy, "/").text(), "app");
    done(&proxy, &format!("deploy web --target {} --host svc.test", new.endpoint));
    assert_eq!(ask(&proxy, "/").text(), "new");
}
