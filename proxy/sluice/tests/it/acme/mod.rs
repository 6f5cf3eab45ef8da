//! Automatic certificates, tested against Pebble: issued by each challenge, renewed, refused, interrupted, on demand.

mod advice;
mod fleet;
mod on_demand;
mod pebble;
mod services;
mod trouble;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{ServerName, UnixTime};
use serde_json::{Value, json};

use crate::support::{Origin, Proxy, Setup, poll, script};
use pebble::{EXTERNAL, Kind, Pebble, Ports, Shown, look};

/// A proxy with a plain listener and one with TLS, on the ports that the authority connects to.
fn setup(origin: &Origin, ports: Ports, acme: Value, names: &[&str]) -> Setup {
    let listeners = json!([
        {"name": "main", "address": format!("127.0.0.1:{}", ports.http), "redirect_to_https": {"port": ports.tls}},
        {"name": "secure", "address": format!("127.0.0.1:{}", ports.tls), "tls": {"acme": {"names": names}}},
    ]);
    Setup::to_origin(origin).with("listeners", listeners).with("acme", acme)
}

/// Waits until a name is served with a certificate of an authority.
fn issued(ports: Ports, name: &str) -> Shown {
    poll(&format!("a certificate for {name}"), || {
        look(ports.tls, name).filter(|shown| shown.is_issued_for(name))
    })
}

fn attempts(proxy: &Proxy, outcome: &str) -> f64 {
    proxy.metric(&format!("sluice_acme_attempts_total{{outcome=\"{outcome}\"}}"))
}

/// A hook that updates the name server; the test provides the commands before that.
fn hook(pebble: &Pebble, before: &str) -> Value {
    let file = pebble.path("hook.sh");
    let text = format!(
        "#!/bin/sh\nset -e\n[ \"$1\" = here ]\n{before}\n\
         case $2 in present) path=set-txt ;; cleanup) path=clear-txt ;; *) exit 3 ;; esac\n\
         curl -sf -X POST -d \"{{\\\"host\\\": \\\"$3\\\", \\\"value\\\": \\\"$4\\\"}}\" http://{}/$path\n",
        pebble.records
    );
    script(&file, &text);
    json!({"command": file, "arguments": ["here"], "wait_ms": 0})
}

fn modes(folder: &Path) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        found.push((
            entry.file_name().into_string().unwrap(),
            entry.metadata().unwrap().permissions().mode() & 0o777,
        ));
        if entry.path().is_dir() {
            found.extend(modes(&entry.path()));
        }
    }
    found.sort();
    found
}

/// Verifies like a client.
fn verify(shown: &Shown, name: &str, pebble: &Pebble) {
    let mut roots = RootCertStore::empty();
    roots.add(pebble.root()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    verifier.verify_server_cert(&shown.chain[0], &shown.chain[1..], &name, &[], UnixTime::now()).unwrap();
}

#[test]
fn http_01_precedes_redirects_and_files_are_private() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let Some(proxy) = setup(&origin, ports, pebble.config(), &["a.example", "b.example"]).start() else {
        return;
    };
    for name in ["a.example", "b.example"] {
        verify(&issued(ports, name), name, &pebble);
    }
    assert_eq!(attempts(&proxy, "issued"), 2.0);
    assert_eq!(proxy.said("created an ACME account"), 1);
    assert_eq!(proxy.said("no certificate yet; serving a self-signed one until it is issued"), 2);
    let unknown = proxy.get("/.well-known/acme-challenge/unknown");
    assert_eq!(unknown.status(), 301, "as without ACME");
    let found = modes(&pebble.path("state"));
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[1..],
        ["a.example.pem", "account.json", "b.example.pem", "certificates", "lock"],
        "{names:?}"
    );
    for (name, mode) in &found {
        let expected = if name == "certificates" || name.starts_with("127.0.0.1") { 0o700 } else { 0o600 };
        assert_eq!(*mode, expected, "{name}");
    }
}

#[test]
fn stored_certificates_are_served_at_once_without_an_order() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let start = || setup(&origin, ports, pebble.config(), &["a.example"]).start();
    let Some(proxy) = start() else { return };
    let first = issued(ports, "a.example");
    drop(proxy);
    let proxy = start().unwrap();
    assert_eq!(look(ports.tls, "a.example"), Some(first));
    assert_eq!(proxy.said("no certificate yet"), 0);
    // A further name uses the same account.
    let mut config = proxy.config.clone();
    config["listeners"][1]["tls"]["acme"]["names"] = json!(["a.example", "c.example"]);
    assert_eq!(proxy.reload(&config).0, Some(0));
    issued(ports, "c.example");
    assert_eq!((attempts(&proxy, "issued"), proxy.said("created an ACME account")), (1.0, 0));
    // A removed name is no longer served.
    config["listeners"][1]["tls"]["acme"]["names"] = json!(["c.example"]);
    assert_eq!(proxy.reload(&config).0, Some(0));
    poll("the end of a.example", || {
        look(ports.tls, "a.example").filter(|shown| shown.names == ["c.example"])
    });
}

#[test]
fn tls_alpn_01_with_an_external_account() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind { external: true, ..Kind::default() }) else { return };
    let mut acme = pebble.config();
    let secret = pebble.path("secret");
    fs::write(&secret, format!("{}\n", EXTERNAL.1)).unwrap();
    acme["challenge"] = "tls-alpn-01".into();
    acme["external_account"] = json!({"key_id": EXTERNAL.0, "hmac_file": secret});
    let Some(proxy) = setup(&origin, ports, acme, &["a.example"]).start() else { return };
    let shown = issued(ports, "a.example");
    verify(&shown, "a.example", &pebble);
    assert_eq!(attempts(&proxy, "failed"), 0.0);
}

#[test]
fn dns_01_supports_wildcards() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind::default()) else { return };
    let mut acme = pebble.config();
    acme["challenge"] = "dns-01".into();
    acme["profile"] = "default".into();
    let calls = pebble.path("calls");
    acme["dns_hook"] = hook(&pebble, &format!("echo \"$2 $3\" >> {}", calls.display()));
    let Some(proxy) = setup(&origin, ports, acme, &["*.a.example"]).start() else { return };
    let shown = poll("a certificate", || {
        look(ports.tls, "x.a.example").filter(|one| one.is_issued_for("*.a.example"))
    });
    verify(&shown, "x.a.example", &pebble);
    assert_eq!(attempts(&proxy, "failed"), 0.0);
    let called = fs::read_to_string(calls).unwrap();
    assert_eq!(called, "present _acme-challenge.a.example.\ncleanup _acme-challenge.a.example.\n");
}

#[test]
fn certificates_are_renewed_in_time() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(pebble) = Pebble::start(ports, &Kind { validity_s: 10, ..Kind::default() }) else { return };
    let Some(proxy) = setup(&origin, ports, pebble.config(), &["a.example"]).start() else { return };
    let first = issued(ports, "a.example");
    let second = poll("a renewed one", || look(ports.tls, "a.example").filter(|shown| *shown != first));
    verify(&second, "a.example", &pebble);
    assert!(attempts(&proxy, "issued") >= 2.0);
    assert_eq!((attempts(&proxy, "failed"), proxy.said("created an ACME account")), (0.0, 1));
}

#[test]
fn each_authority_has_its_own_account_and_certificates() {
    let (ports, origin) = (Ports::new(), Origin::saying("hi"));
    let Some(staging) = Pebble::start(ports, &Kind::default()) else { return };
    let production = Pebble::start(ports, &Kind::default()).unwrap();
    let Some(proxy) = setup(&origin, ports, staging.config(), &["a.example"]).start() else { return };
    let first = issued(ports, "a.example");
    let mut config = proxy.config.clone();
    config["acme"] = production.config();
    config["acme"]["state_folder"] = staging.config()["state_folder"].clone();
    assert_eq!(proxy.reload(&config).0, Some(0));
    // There is always a certificate meanwhile.
    let second = poll("a certificate of the other authority", || {
        let shown = look(ports.tls, "a.example").unwrap();
        assert!(shown.is_issued_for("a.example"), "{shown:?}");
        (shown != first).then_some(shown)
    });
    verify(&second, "a.example", &production);
    assert_eq!(proxy.said("created an ACME account"), 2);
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    poll("the certificate of the first authority", || {
        (look(ports.tls, "a.example").unwrap() == first).then_some(())
    });
    assert_eq!(attempts(&proxy, "issued"), 2.0, "it was stored");
}
