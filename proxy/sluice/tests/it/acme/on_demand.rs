//! Certificates for names that nobody has written down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::pebble::{Kind, Pebble, Ports, look};
use super::{attempts, issued, setup};
use crate::support::{Message, Origin, Proxy, ok, poll};

fn asks(proxy: &Proxy, outcome: &str) -> f64 {
    proxy.metric(&format!("sluice_acme_asks_total{{outcome=\"{outcome}\"}}"))
}

/// Allows names that begin with `good`.
fn judge() -> Origin {
    Origin::answering(|request: &Message| match request.target().starts_with("/may?domain=good") {
        true => ok("yes"),
        false => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
    })
}

#[test]
fn only_names_that_are_allowed_reach_the_authority() {
    let (ports, origin, judge) = (Ports::new(), Origin::saying("hi"), judge());
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let ask_url = format!("http://{}/may", judge.endpoint);
    let on_demand = json!({"ask_url": ask_url, "names_max": 1, "ask_again_ms": 3_600_000});
    let setup = setup(&origin, ports, pebble.config(), &["a.example"]);
    let setup = setup.with("listeners.1.tls.acme.on_demand", on_demand.clone());
    let Some(proxy) = setup.start() else { return };
    issued(ports, "a.example");
    for name in ["bad.example", "localhost", "bad.example"] {
        let shown = look(ports.tls, name).unwrap();
        assert_eq!(shown.names, ["a.example"], "what there is");
    }
    poll("the answer", || (asks(&proxy, "denied") == 1.0).then_some(()));
    let shown = look(ports.tls, "Good.example").unwrap();
    assert_eq!(shown.names, ["a.example"], "it waits for nobody");
    issued(ports, "good.example");
    // All who may have one have one.
    look(ports.tls, "good2.example").unwrap();
    poll("the bound", || (asks(&proxy, "dropped") == 1.0).then_some(()));
    assert_eq!((asks(&proxy, "allowed"), asks(&proxy, "denied")), (1.0, 1.0), "once each");
    assert_eq!(attempts(&proxy, "issued"), 2.0);
    let log = pebble.log();
    assert!(!log.contains("bad.example") && !log.contains("good2.example"), "{log}");

    // It is kept, like all others.
    let config = proxy.config.clone();
    drop(proxy);
    let setup = super::setup(&origin, ports, pebble.config(), &["a.example"]);
    let proxy = setup.with("listeners.1.tls.acme.on_demand", on_demand).start().unwrap();
    assert_eq!(proxy.config["acme"], config["acme"]);
    assert!(look(ports.tls, "good.example").unwrap().is_issued_for("good.example"));
}

#[test]
fn who_may_have_one_no_more_is_not_renewed() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind { validity_s: 8, ..Kind::default() }) else { return };
    let allows = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&allows);
    let judge = Origin::answering(move |_| match asked.load(Ordering::Relaxed) {
        true => ok("yes"),
        false => b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".to_vec(),
    });
    let on_demand = json!({"ask_url": format!("http://{}/", judge.endpoint)});
    let setup = setup(&origin, ports, pebble.config(), &["a.example"]);
    let Some(proxy) = setup.with("listeners.1.tls.acme.on_demand", on_demand).start() else { return };
    issued(ports, "a.example");
    look(ports.tls, "b.example").unwrap();
    let first = issued(ports, "b.example");
    poll("a renewed one", || (issued(ports, "b.example") != first).then_some(()));
    assert!(asks(&proxy, "allowed") >= 2.0, "before each");
    allows.store(false, Ordering::Relaxed);
    poll("the end of it", || (look(ports.tls, "b.example")?.names == ["a.example"]).then_some(()));
    proxy.wait_for("the name may no longer have a certificate");
    assert_eq!(proxy.said("the name may no longer have a certificate"), 1);
    let folder = std::fs::read_dir(pebble.path("state")).unwrap().next().unwrap().unwrap().path();
    assert!(!folder.join("certificates/b.example.pem").exists());
}

#[test]
fn without_an_answer_nothing_is_asked_for() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    // Nobody listens there.
    let on_demand = json!({"ask_url": format!("http://127.0.0.1:{}/may", Ports::new().http)});
    let setup = setup(&origin, ports, pebble.config(), &[]);
    let Some(proxy) = setup.with("listeners.1.tls.acme.on_demand", on_demand).start() else { return };
    assert!(look(ports.tls, "good.example").is_none(), "there is nothing to show");
    poll("the failure", || (asks(&proxy, "failed") == 1.0).then_some(()));
    proxy.wait_for("cannot ask whether the name may have a certificate");
    assert_eq!(proxy.said("cannot ask whether the name may have a certificate"), 1);
    assert_eq!(attempts(&proxy, "issued") + attempts(&proxy, "failed"), 0.0);
    assert!(!pebble.log().contains("good.example"));
}
