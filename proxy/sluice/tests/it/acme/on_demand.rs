//! On-demand certificates: for names that are not listed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::pebble::{Kind, Pebble, Ports, look};
use super::{attempts, issued, setup};
use crate::support::{Authority, Identity, Message, Origin, Proxy, ok, poll};

fn asks(proxy: &Proxy, outcome: &str) -> f64 {
    proxy.metric(&format!("sluice_acme_asks_total{{outcome=\"{outcome}\"}}"))
}

/// Allows names that begin with `good`.
fn judge(identity: &Identity) -> Origin {
    Origin::answering_tls(identity.server(), |request: &Message| {
        match request.target().starts_with("/may?domain=good") {
            true => ok("yes"),
            false => b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(),
        }
    })
}

#[test]
fn only_approved_names_reach_the_authority() {
    let authority = Authority::new();
    let judge = judge(&authority.identity(&["127.0.0.1"]));
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let ask_url = format!("https://{}/may", judge.endpoint);
    let on_demand = json!({"ask_url": ask_url, "names_max": 1, "ask_again_ms": 3_600_000});
    let setup = setup(&origin, ports, pebble.config(), &["a.example"]);
    let file = setup.file("judge.pem", &authority.pem());
    let setup = setup.after(&format!("export SSL_CERT_FILE={}", file.display()));
    let setup = setup.with("listeners.1.tls.acme.on_demand", on_demand.clone());
    let Some(proxy) = setup.start() else { return };
    issued(ports, "a.example");
    for name in ["bad.example", "localhost", "bad.example"] {
        let shown = look(ports.tls, name).unwrap();
        assert_eq!(shown.names, ["a.example"], "the existing certificate");
    }
    poll("the decision", || (asks(&proxy, "denied") == 1.0).then_some(()));
    let shown = look(ports.tls, "Good.example").unwrap();
    assert_eq!(shown.names, ["a.example"], "clients do not wait for it");
    issued(ports, "good.example");
    // The limit is reached.
    look(ports.tls, "good2.example").unwrap();
    poll("the limit", || (asks(&proxy, "dropped") == 1.0).then_some(()));
    assert_eq!((asks(&proxy, "allowed"), asks(&proxy, "denied")), (1.0, 1.0), "asked once each");
    assert_eq!(attempts(&proxy, "issued"), 2.0);
    let log = pebble.log();
    assert!(!log.contains("bad.example") && !log.contains("good2.example"), "{log}");

    // It is stored like the others.
    let config = proxy.config.clone();
    drop(proxy);
    let setup = super::setup(&origin, ports, pebble.config(), &["a.example"]);
    let proxy = setup.with("listeners.1.tls.acme.on_demand", on_demand).start().unwrap();
    assert_eq!(proxy.config["acme"], config["acme"]);
    assert!(look(ports.tls, "good.example").unwrap().is_issued_for("good.example"));
}

#[test]
fn names_no_longer_approved_are_not_renewed() {
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
    poll("the removal of the certificate", || {
        (look(ports.tls, "b.example")?.names == ["a.example"]).then_some(())
    });
    proxy.wait_for("removed the certificate of a name that is no longer approved");
    assert_eq!(proxy.said("removed the certificate of a name that is no longer approved"), 1);
    let folder = std::fs::read_dir(pebble.path("state")).unwrap().next().unwrap().unwrap().path();
    assert!(!folder.join("certificates/b.example.pem").exists());
}

#[test]
fn without_approval_nothing_is_ordered() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    // No process listens there.
    let on_demand = json!({"ask_url": format!("http://127.0.0.1:{}/may", Ports::new().http)});
    let setup = setup(&origin, ports, pebble.config(), &[]);
    let Some(proxy) = setup.with("listeners.1.tls.acme.on_demand", on_demand).start() else { return };
    assert!(look(ports.tls, "good.example").is_none(), "no certificate to serve");
    poll("the failure", || (asks(&proxy, "failed") == 1.0).then_some(()));
    proxy.wait_for("cannot ask whether the name may have a certificate");
    assert_eq!(proxy.said("cannot ask whether the name may have a certificate"), 1);
    assert_eq!(attempts(&proxy, "issued") + attempts(&proxy, "failed"), 0.0);
    assert!(!pebble.log().contains("good.example"));
}
