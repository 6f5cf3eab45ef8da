//! TLS from the client and to the endpoint, and TLS of one listener that another passes through.

use std::process::Command;
use std::sync::Arc;

use rustls::ClientConfig;
use serde_json::{Value, json};

use crate::support::{Authority, Origin, Proxy, Setup, Wire, assert_same, ok, pattern};

/// A listener that terminates TLS for `site.test`, and one that passes it through by `sni`.
fn setup(origin: &Origin, authority: &Authority, inner: &str) -> Setup {
    let setup = Setup::to_origin(origin);
    let site = authority.identity(&["site.test"]);
    let certificate = json!({
        "cert": setup.file("site.pem", &site.cert_pem),
        "key": setup.file("site.key", &site.key_pem),
    });
    let file = setup.file("ca.pem", &authority.pem());
    setup
        .with("clusters.default.tls", json!({"ca_file": file, "server_name": "inner.test"}))
        .with("clusters.inner", json!({"endpoints": [inner]}))
        .with(
            "listeners",
            json!([
                {"name": "main", "address": "127.0.0.1:0", "tls": {"certificates": [certificate]}},
                {"name": "outer", "address": "127.0.0.1:0", "protocol": "tls-passthrough", "sni": {"site.test": "inner"}},
            ]),
        )
        .with("routes", json!([{"name": "all", "cluster": "default"}]))
}

fn secure(proxy: &Proxy, listener: &str, client: &Arc<ClientConfig>) -> Wire {
    Wire::connect_tls(proxy.address_of(listener), "site.test", client).unwrap()
}

#[test]
fn exchanges_use_tls_on_both_sides() {
    let authority = Authority::new();
    let origin = Origin::answering_tls(authority.identity(&["inner.test"]).server(), |request| match request
        .target()
    {
        "/up" => ok(&request.body.len().to_string()),
        _ => ok(request.get("x-forwarded-proto").unwrap()),
    });
    let Some(proxy) = setup(&origin, &authority, "127.0.0.1:9").start() else { return };
    let client = Arc::new(authority.client());
    let mut wire = secure(&proxy, "main", &client);
    for _ in 0..2 {
        assert_eq!(wire.ask("GET /proto HTTP/1.1\r\nHost: site.test\r\n\r\n").text(), "https");
    }
    assert_eq!(origin.connections(), 1);
    // Small requests may use joined connections; this one does not.
    let body = pattern(3_000_000);
    wire.send(format!("POST /up HTTP/1.1\r\nHost: site.test\r\nContent-Length: {}\r\n\r\n", body.len()));
    wire.send(&body);
    assert_eq!(wire.response().text(), "3000000");
    assert_same(&origin.last().body, &body);
}

#[test]
fn websockets_use_tls_on_both_sides() {
    let authority = Authority::new();
    let origin = Origin::playing_tls(authority.identity(&["inner.test"]).server(), |mut peer| {
        peer.next().unwrap();
        peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        let (all, clean) = peer.rest();
        assert!(clean);
        peer.send(&all);
        peer.finish();
    });
    let Some(proxy) = setup(&origin, &authority, "127.0.0.1:9").start() else { return };
    let mut wire = secure(&proxy, "main", &Arc::new(authority.client()));
    wire.send("GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(wire.head().status(), 101);
    let bytes = pattern(200_000);
    wire.send(&bytes);
    wire.finish();
    let (back, clean) = wire.rest();
    assert!(clean);
    assert_same(&back, &bytes);
    assert_eq!(proxy.record("/ws")["reason"], Value::Null);
}

#[test]
fn passed_through_tls_may_be_terminated_by_another_listener() {
    let authority = Authority::new();
    let origin =
        Origin::answering_tls(authority.identity(&["inner.test"]).server(), |_| ok("through all of it"));
    let Some(inner) = setup(&origin, &authority, "127.0.0.1:9").start() else { return };
    let address = inner.address_of("main").to_string();
    let Some(outer) = setup(&origin, &authority, &address).start() else { return };
    let mut wire = secure(&outer, "outer", &Arc::new(authority.client()));
    for _ in 0..2 {
        let answer = wire.ask("GET / HTTP/1.1\r\nHost: site.test\r\n\r\n");
        assert_eq!(answer.text(), "through all of it");
    }
}

#[test]
fn sluice_check_reads_the_certificate_files() {
    let authority = Authority::new();
    let Some(proxy) = setup(&Origin::saying(""), &authority, "127.0.0.1:9").start() else { return };
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        let output =
            command.args(["check", "--config"]).arg(proxy.folder.join("sluice.yaml")).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), said)
    };
    assert_eq!(check().0, Some(0));
    std::fs::write(proxy.folder.join("ca.pem"), "nothing").unwrap();
    let (code, said) = check();
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("clusters.default.tls.ca_file: ") && said.contains("contains no certificate"),
        "{said}"
    );
}
