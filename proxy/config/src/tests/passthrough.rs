//! tls-passthrough listeners: valid server names, and the keys that only they have.

use super::super::*;
use super::{mistakes, read};

const CLUSTERS: &str = "clusters: {db: {endpoints: ['10.0.0.1:5432']}, web: {endpoints: ['10.0.0.2:443']}}\n";

fn listener(keys: &str) -> String {
    format!("listeners: [{{address: '127.0.0.1:443', {keys}}}]\n{CLUSTERS}")
}

#[test]
fn unlisted_names_use_the_listeners_cluster() {
    let keys = "protocol: tls-passthrough, sni: {DB.example: db, '*.example': web}, cluster: web, \
        starttls: postgres, client_hello_bytes_max: 4096";
    let config = read(&listener(keys));
    let listener = &config.listeners[0];
    let passthrough = listener.passthrough.as_ref().unwrap();
    assert_eq!((listener.protocol, listener.cluster.as_deref()), (Protocol::TlsPassthrough, Some("web")));
    assert_eq!(
        (passthrough.cluster_of("db.example"), passthrough.cluster_of("a.example")),
        (Some("db"), Some("web"))
    );
    assert_eq!((passthrough.starttls, passthrough.client_hello_bytes_max), (StartTls::Postgres, 4096));
    assert_eq!(passthrough.client_hello_timeout_ms, 10_000);
    assert!(config.routes.is_empty(), "no listener here uses routes");
    assert!(
        read(&format!(
            "listeners: [{{address: 'a:443', protocol: tls-passthrough, cluster: db}}]\n{CLUSTERS}"
        ))
        .listeners[0]
            .passthrough
            .is_some()
    );
}

#[test]
fn passthrough_mistakes_are_reported() {
    let at = "listeners[0]";
    for (keys, expected) in [
        (
            "protocol: tls-passthrough",
            format!(
                "{at}: sni is missing; write which server name goes to which cluster, or a cluster for all"
            ),
        ),
        (
            "protocol: tls-passthrough, sni: {a.test: dbb}",
            format!("{at}.sni.\"a.test\": no cluster is named \"dbb\"; did you mean db?"),
        ),
        (
            "protocol: tls-passthrough, sni: {a.test: db}, cluster: wbe",
            format!("{at}.cluster: no cluster is named \"wbe\"; did you mean web?"),
        ),
        (
            "protocol: tls-passthrough, sni: {'*': db}",
            format!("{at}.sni.*: \"*\" is not a host; write cluster next to sni for all other names"),
        ),
        (
            "protocol: tls-passthrough, sni: {10.0.0.1: db}",
            format!(
                "{at}.sni.\"10.0.0.1\": \"10.0.0.1\" is an IP address, which clients do not send as \
                     SNI; write a host"
            ),
        ),
        (
            "protocol: tls-passthrough, sni: {'a.*.test': db}",
            format!(
                "{at}.sni.\"a.*.test\": \"a.*.test\" has a * that is not the first label; write *.example.com"
            ),
        ),
        (
            "protocol: tls-passthrough, sni: {a.test: db, A.test: db}",
            format!("{at}.sni.\"A.test\": \"A.test\" is listed twice, in different case; keep one"),
        ),
        (
            "protocol: tls-passthrough, cluster: db, starttls: smtp",
            format!("{at}.starttls: \"smtp\" is not known; write off or postgres"),
        ),
        (
            "protocol: tls-passthrough, cluster: db, client_hello_bytes_max: 1",
            format!("{at}.client_hello_bytes_max: 1 is out of range; write bytes from 256 to 262144"),
        ),
        (
            "protocol: tcp, cluster: db, sni: {a.test: db}",
            format!("{at}.sni: this is only valid with protocol: tls-passthrough; remove it"),
        ),
        (
            "protocol: tcp, cluster: db, client_hello_timeout_ms: 1",
            format!(
                "{at}.client_hello_timeout_ms: this is only valid with protocol: tls-passthrough; \
                     remove it"
            ),
        ),
        (
            "protocol: tls_passthrough, cluster: db",
            format!("{at}.protocol: \"tls_passthrough\" is not known; did you mean tls-passthrough?"),
        ),
    ] {
        let said = mistakes(&listener(keys));
        assert!(said.len() == 1 && said[0].ends_with(&expected), "{keys}: {said:#?}");
    }
}
