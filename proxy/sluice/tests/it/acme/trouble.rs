//! Failures while obtaining certificates, and what is served meanwhile.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::json;

use super::pebble::{Kind, Pebble, Ports, look};
use super::{attempts, hook, issued, setup};
use crate::support::{Origin, poll};

#[test]
fn failures_quote_the_authority_and_are_retried() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let names = ["blocked.example", "a.example"];
    let Some(proxy) = setup(&origin, ports, pebble.config(), &names).start() else { return };
    poll("some tries", || (attempts(&proxy, "failed") >= 3.0).then_some(()));
    let line = proxy.line_beginning("cannot obtain a certificate: ");
    let message = line["message"].as_str().unwrap();
    assert_eq!(line["name"], "blocked.example", "{line}");
    assert!(message.contains("blocked") && message.contains("(rejectedIdentifier)"), "{message}");
    assert_eq!(proxy.said("cannot obtain a certificate: "), 1, "a repeated failure is logged once");
    let shown = look(ports.tls, "blocked.example").unwrap();
    assert!(shown.issuer.contains("sluice") && shown.names == ["blocked.example"], "{shown:?}");
    // The other name does not wait for it.
    issued(ports, "a.example");
    assert_eq!(proxy.metric("sluice_acme_names_failing"), 1.0);
}

#[test]
fn a_refused_nonce_is_no_failure() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind { refused_nonces: 35, ..Kind::default() }) else { return };
    let names = ["a.example", "b.example", "c.example", "d.example", "e.example", "f.example", "g.example"];
    let Some(proxy) = setup(&origin, ports, pebble.config(), &names).start() else { return };
    for name in names {
        issued(ports, name);
    }
    assert_eq!((attempts(&proxy, "issued"), attempts(&proxy, "failed")), (7.0, 0.0));
}

#[test]
fn the_old_certificate_is_served_until_a_new_one_is_issued() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind { validity_s: 6, ..Kind::default() }) else { return };
    let Some(proxy) = setup(&origin, ports, pebble.config(), &["a.example"]).start() else { return };
    issued(ports, "a.example");
    // From here on, no process listens where the authority connects.
    let mut config = proxy.config.clone();
    config["listeners"][0]["address"] = json!(format!("127.0.0.1:{}", Ports::new().http));
    assert_eq!(proxy.reload(&config).0, Some(0));
    poll("a failure", || (attempts(&proxy, "failed") >= 2.0).then_some(()));
    let line = proxy.line_beginning("cannot obtain a certificate: ");
    assert!(line["message"].as_str().unwrap().contains("(connection)"), "{line}");
    assert!(look(ports.tls, "a.example").unwrap().is_issued_for("a.example"));
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    let before = attempts(&proxy, "issued");
    poll("a new certificate", || (attempts(&proxy, "issued") > before).then_some(()));
}

#[test]
fn an_order_interrupted_by_a_kill_is_repeated() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let (reached, go) = (pebble.path("reached"), pebble.path("go"));
    let mut acme = pebble.config();
    acme["challenge"] = "dns-01".into();
    let wait = format!("touch {}; while [ ! -e {} ]; do sleep 0.1; done", reached.display(), go.display());
    acme["dns_hook"] = hook(&pebble, &wait);
    let start = || setup(&origin, ports, acme.clone(), &["a.example"]).start();
    let Some(mut proxy) = start() else { return };
    poll("the hook", || reached.exists().then_some(()));
    proxy.signal(Signal::SIGKILL);
    proxy.wait();
    drop(proxy);
    fs::write(&go, "").unwrap();
    let proxy = start().unwrap();
    issued(ports, "a.example");
    assert_eq!(proxy.said("created an ACME account"), 0, "the account was kept");
    assert_eq!((attempts(&proxy, "issued"), attempts(&proxy, "failed")), (1.0, 0.0));
}

#[test]
fn one_of_two_processes_orders_and_both_serve() {
    let (ports, others, origin) = (Ports::new(), Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let (calls, go) = (pebble.path("calls"), pebble.path("go"));
    let mut acme = pebble.config();
    acme["challenge"] = "dns-01".into();
    let wait = format!("echo $2 >> {}; while [ ! -e {} ]; do sleep 0.1; done", calls.display(), go.display());
    acme["dns_hook"] = hook(&pebble, &wait);
    let Some(first) = setup(&origin, ports, acme.clone(), &["a.example"]).start() else { return };
    poll("the hook", || calls.exists().then_some(()));
    let second = setup(&origin, others, acme, &["a.example"]).start().unwrap();
    assert!(look(others.tls, "a.example").unwrap().issuer.contains("sluice"), "it has no issued certificate");
    fs::write(&go, "").unwrap();
    let shown = issued(ports, "a.example");
    assert_eq!(issued(others, "a.example"), shown);
    assert_eq!((attempts(&first, "issued"), attempts(&second, "issued")), (1.0, 0.0));
    assert_eq!(fs::read_to_string(calls).unwrap(), "present\ncleanup\n");
}

#[test]
fn an_unknown_account_is_recreated() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let Some(proxy) = setup(&origin, ports, pebble.config(), &["a.example"]).start() else { return };
    issued(ports, "a.example");
    drop(proxy);
    let folder = fs::read_dir(pebble.path("state")).unwrap().next().unwrap().unwrap().path();
    let account = fs::read_to_string(folder.join("account.json")).unwrap();
    let id = account.lines().find(|line| line.contains("\"id\"")).unwrap();
    fs::write(
        folder.join("account.json"),
        account.replace(id, &id.replace("/my-account/", "/my-account/un")),
    )
    .unwrap();
    fs::remove_file(folder.join("certificates/a.example.pem")).unwrap();
    let proxy = setup(&origin, ports, pebble.config(), &["a.example"]).start().unwrap();
    issued(ports, "a.example");
    assert_eq!(proxy.said("renamed the ACME account file"), 1);
    assert!(folder.join("account.json.damaged").exists());
}

#[test]
fn a_damaged_certificate_is_set_aside_and_replaced() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let Some(proxy) = setup(&origin, ports, pebble.config(), &["a.example"]).start() else { return };
    issued(ports, "a.example");
    drop(proxy);
    let folder = fs::read_dir(pebble.path("state")).unwrap().next().unwrap().unwrap().path();
    let file = folder.join("certificates/a.example.pem");
    let half = fs::read_to_string(&file).unwrap();
    fs::write(&file, &half[..half.len() / 2]).unwrap();
    let proxy = setup(&origin, ports, pebble.config(), &["a.example"]).start().unwrap();
    issued(ports, "a.example");
    assert_eq!(attempts(&proxy, "issued"), 1.0);
    assert!(folder.join("certificates/a.example.pem.damaged").exists());
}

#[test]
fn without_a_state_folder_sluice_does_not_start() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let acme = json!({"terms_agreed": true});
    let (code, said) = setup(&origin, ports, acme, &["a.example"]).after("unset STATE_DIRECTORY").fails();
    if !said.contains("io_uring is ") {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("acme.state_folder: is missing"), "{said}");
    }
}
