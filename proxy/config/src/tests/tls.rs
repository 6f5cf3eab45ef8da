//! A listener's TLS: what is accepted, and what is a mistake.

use super::super::*;
use super::{mistakes, read};

const CERTIFICATE: &str = "certificates: [{cert: /a.pem, key: /a.key}]";

fn listener(keys: &str) -> String {
    format!(
        "listeners: [{{address: '127.0.0.1:443', {keys}}}]\nclusters: {{a: {{endpoints: ['10.0.0.1:80']}}}}\n"
    )
}

fn tls(keys: &str) -> String {
    listener(&format!("tls: {{{CERTIFICATE}, {keys}}}"))
}

/// The mistakes of one listener, without the file and the line.
fn said(text: &str) -> Vec<String> {
    let strip = |line: String| line.splitn(3, ':').nth(2).unwrap().trim().to_owned();
    mistakes(text).into_iter().map(strip).collect()
}

#[test]
fn tls_defaults_are_safe() {
    let config = read(&listener(&format!("tls: {{{CERTIFICATE}}}")));
    let tls = config.listeners[0].tls.clone().unwrap();
    assert_eq!((tls.min_version, tls.client_auth.mode), (TlsVersion::V12, ClientAuthMode::Off));
    assert_eq!((tls.handshake_timeout_ms, tls.watch_interval_ms), (10_000, 10_000));
    assert_eq!(config.listeners[0].hsts, None);
    assert_eq!(read(&listener("tls: off")).listeners[0].tls, None);
}

#[test]
fn certificates_are_pairs_or_folders() {
    let text =
        "tls: {certificates: [{cert: /a.pem}, {cert: /b.pem, key: /b.key, ocsp: /b.ocsp}, {folder: /live}]}";
    let pair = |cert: &str, key: &str, ocsp: Option<&str>| CertificateFiles::Pair {
        cert: cert.into(),
        key: key.into(),
        ocsp: ocsp.map(Into::into),
    };
    let expected = [
        pair("/a.pem", "/a.pem", None),
        pair("/b.pem", "/b.key", Some("/b.ocsp")),
        CertificateFiles::Folder("/live".into()),
    ];
    assert_eq!(read(&listener(text)).listeners[0].tls.clone().unwrap().certificates, expected);
}

#[test]
fn a_version_is_read_with_and_without_quotes() {
    for text in ["min_version: 1.3", "min_version: '1.3'"] {
        assert_eq!(read(&tls(text)).listeners[0].tls.as_ref().unwrap().min_version, TlsVersion::V13);
    }
    let message = &said(&tls("min_version: 1.1"))[0];
    assert!(message.contains("TLS 1.1 is deprecated (RFC 8996)"), "{message}");
}

#[test]
fn redirects_and_hsts_have_short_forms() {
    let redirect = |text: &str| read(&listener(text)).listeners[0].redirect_to_https;
    assert_eq!(redirect("redirect_to_https: on"), Some(RedirectToHttps { port: 443 }));
    assert_eq!(redirect("redirect_to_https: {port: 8443}"), Some(RedirectToHttps { port: 8443 }));
    assert_eq!(redirect("redirect_to_https: off"), None);
    let hsts =
        |keys: &str| read(&listener(&format!("tls: {{{CERTIFICATE}}}, hsts: {keys}"))).listeners[0].hsts;
    assert_eq!(hsts("{}").unwrap().field_value(), "max-age=31536000");
    let all = hsts("{include_subdomains: true, preload: true}").unwrap();
    assert_eq!(all.field_value(), "max-age=31536000; includeSubDomains; preload");
}

#[test]
fn mistakes_name_the_key_and_what_to_write() {
    let cases = [
        ("tls: {}", "listeners[0].tls: certificates is missing; write [{cert:"),
        ("tls: {certificates: []}", "listeners[0].tls.certificates: the list is empty; write [{cert:"),
        (
            "tls: {certificates: [{key: /a}]}",
            "tls.certificates[0]: no certificate is named; write cert and key",
        ),
        (
            "tls: {certificates: [{folder: /a, cert: /b}]}",
            "tls.certificates[0]: folder and cert exclude each other",
        ),
        ("tls: {certificates: [{folder: /a, key: /b}]}", "tls.certificates[0]: a folder's keys"),
        ("redirect_to_https: sometimes", "redirect_to_https: \"sometimes\" is not known"),
        ("hsts: {}", "listeners[0].hsts: only an http listener with tls can send HSTS"),
        (
            "protocol: tcp, cluster: a, redirect_to_https: on",
            "redirect_to_https: only an http listener without tls",
        ),
    ];
    for (keys, expected) in cases {
        let found = said(&listener(keys));
        assert!(found.len() == 1 && found[0].contains(expected), "{keys}: {found:?}");
    }
    let of_tls = [
        ("cipher_suites: [TLS13_AES_256_GCM_SHA385]", "tls.cipher_suites[0]: no cipher suite is named"),
        ("client_auth: {mode: required}", "tls.client_auth: ca_file is missing"),
        ("client_auth: {ca_file: /ca.pem}", "tls.client_auth.mode: ca_file has no effect"),
        ("client_auth: {mode: maybe}", "tls.client_auth.mode: \"maybe\" is not known"),
        ("handshake_timeout_ms: 1", "tls.handshake_timeout_ms: 1 is out of range"),
        ("sni: on", "tls.sni: unknown key"),
        (
            "min_version: '1.3', cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]",
            "tls.cipher_suites: none of these is for TLS 1.3",
        ),
    ];
    for (keys, expected) in of_tls {
        let found = said(&tls(keys));
        assert!(found.len() == 1 && found[0].contains(expected), "{keys}: {found:?}");
    }
    let of_http3 = [
        ("", "http3: only an http listener with tls can speak HTTP/3"),
        ("protocol: tcp, cluster: a, ", "http3: only an http listener with tls can speak HTTP/3"),
        ("proxy_protocol: any, tls: {CERTIFICATE}, ", "http3: a proxy in front"),
        (
            "tls: {CERTIFICATE, cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]}, ",
            "http3: none of tls.cipher_suites is for TLS 1.3",
        ),
    ];
    for (keys, expected) in of_http3 {
        let keys = keys.replace("CERTIFICATE", CERTIFICATE);
        let found = said(&listener(&format!("{keys}http3: auto")));
        assert!(found.len() == 1 && found[0].contains(expected), "{keys}: {found:?}");
    }
    let early = [
        ("session_tickets: false", "http3.early_data: clients cannot return"),
        ("client_auth: {mode: optional, ca_file: /ca.pem}", "http3.early_data: a request could be repeated"),
    ];
    for (keys, expected) in early {
        let keys = format!("tls: {{{CERTIFICATE}, {keys}}}, http3: {{early_data: safe}}");
        let found = said(&listener(&keys));
        assert!(found.len() == 1 && found[0].contains(expected), "{keys}: {found:?}");
    }
    let found = said(&listener("tls: {CERTIFICATE}, http3: never").replace("CERTIFICATE", CERTIFICATE));
    assert!(found.len() == 1 && found[0].contains("http3: \"never\""), "{found:?}");
    let unix = format!("listeners: [{{address: 'unix:/run/s.sock', tls: {{{CERTIFICATE}}}, http3: auto}}]\n");
    let found = said(&format!("{unix}clusters: {{default: {{endpoints: ['127.0.0.1:1']}}}}\n"));
    assert!(found.len() == 1 && found[0].contains("http3: HTTP/3 needs a UDP port"), "{found:?}");
    let found = said(&listener(&format!("tls: {{{CERTIFICATE}}}, hsts: {{preload: true}}")));
    assert!(
        found[0].contains("hsts.preload: the preload list requires include_subdomains: true"),
        "{found:?}"
    );
}

#[test]
fn a_listener_that_only_redirects_needs_no_route() {
    let text = "listeners: [{address: '127.0.0.1:80', redirect_to_https: on}]\n";
    assert!(read(text).routes.is_empty());
}
