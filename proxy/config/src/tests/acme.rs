//! Automatic certificates (ACME): what is accepted, and what is a mistake.

use super::super::*;
use super::{mistakes, read};

const NAMES: &str = "tls: {acme: {names: [a.example]}}";

/// A listener's keys, and those of `acme`.
fn text(listener: &str, acme: &str) -> String {
    format!(
        "acme: {acme}\nlisteners: [{{address: '127.0.0.1:443', {listener}}}]\nclusters: {{a: {{endpoints: ['10.0.0.1:80']}}}}\n"
    )
}

/// The mistakes, without the file and the line.
fn said(text: &str) -> Vec<String> {
    let strip = |line: String| line.splitn(3, ':').nth(2).unwrap().trim().to_owned();
    mistakes(text).into_iter().map(strip).collect()
}

#[test]
fn defaults_fill_a_minimal_acme_map() {
    let config = read(&text(NAMES, "{terms_agreed: true, email: ops@a.example}"));
    let acme = config.acme.unwrap();
    assert_eq!((acme.directory, acme.challenge), (AcmeDirectory::Production, AcmeChallenge::Http01));
    assert_eq!(acme.contacts, ["mailto:ops@a.example"]);
    let tls = config.listeners[0].tls.clone().unwrap();
    assert!(tls.certificates.is_empty());
    assert_eq!(tls.acme.unwrap().names, ["a.example"]);
    assert_eq!(read(&text("", "off")).acme, None);
}

#[test]
fn directories_are_keywords_or_urls() {
    let directory = |word: &str| {
        let keys = format!("{{terms_agreed: true, directory: '{word}'}}");
        read(&text(NAMES, &keys)).acme.unwrap().directory
    };
    assert!(directory("staging").url().starts_with("https://acme-staging"));
    assert_eq!(directory("https://ca.example:14000/dir").url(), "https://ca.example:14000/dir");
}

#[test]
fn names_on_demand_need_an_ask_url() {
    let keys = "tls: {acme: {on_demand: {ask_url: 'http://127.0.0.1:9000/may', names_max: 3}}}";
    let config = read(&text(keys, "{terms_agreed: true}"));
    let acme = config.listeners[0].tls.clone().unwrap().acme.unwrap();
    let on_demand = acme.on_demand.unwrap();
    assert_eq!(
        (on_demand.ask_url.to_string().as_str(), on_demand.names_max),
        ("http://127.0.0.1:9000/may", 3)
    );
}

#[test]
fn only_issuable_names_are_accepted() {
    for good in ["a.example", "xn--bcher-kva.example", "a-b.c", "localhost", "1.example"] {
        assert!(is_issuable(good), "{good}");
    }
    for bad in [
        "",
        "10.0.0.1",
        "::1",
        "A.example",
        "a_b.example",
        "-a.example",
        "a-.b",
        "a..b",
        "../a",
        "*.a.b",
        "a.b.",
    ] {
        assert!(!is_issuable(bad), "{bad}");
    }
    assert!(!is_issuable(&format!("{}.example", "a".repeat(64))));
}

#[test]
fn mistakes_name_the_key_and_what_to_write() {
    let agreed = "{terms_agreed: true}";
    let cases = [
        (NAMES, "{}", "acme: terms_agreed is missing; write true, once you have read"),
        (NAMES, "{terms_agreed: false}", "acme.terms_agreed: no authority issues certificates without it"),
        (NAMES, "off", "listeners[0].tls.acme: acme is off, so no certificates can be issued"),
        (NAMES, "{terms_agreed: true, directory: lets}", "acme.directory: \"lets\" is not an ACME directory"),
        (NAMES, "{terms_agreed: true, directory: 'http://a/dir'}", "acme.directory: \"http://a/dir\" is not"),
        (NAMES, "{terms_agreed: true, email: ops}", "acme.email: \"ops\" is not an address"),
        (NAMES, "{terms_agreed: true, challenge: dns-01}", "acme: dns_hook is missing"),
        (NAMES, "{terms_agreed: true, challenge: dns}", "acme.challenge: \"dns\" is not known"),
        (NAMES, "{terms_agreed: true, dns_hook: {command: /a}}", "acme.dns_hook: it has no effect without"),
        (
            NAMES,
            "{terms_agreed: true, challenge: dns-01, dns_hook: {command: a}}",
            "acme.dns_hook.command: \"a\" is not an absolute path",
        ),
        (
            NAMES,
            "{terms_agreed: true, external_account: {key_id: a}}",
            "external_account: hmac_file is missing",
        ),
        (NAMES, "{terms_agreed: true, retry_max_ms: 1000}", "acme.retry_max_ms: less than retry_first_ms"),
        ("tls: {acme: {}}", agreed, "listeners[0].tls.acme: no name is given"),
        (
            "tls: {acme: {names: ['*.a.example']}}",
            agreed,
            "acme.names[0]: \"*.a.example\" needs a DNS challenge",
        ),
        ("tls: {acme: {names: [10.0.0.1]}}", agreed, "acme.names[0]: \"10.0.0.1\" is an address"),
        ("tls: {acme: {names: [a.b, A.b]}}", agreed, "acme.names[1]: \"a.b\" is listed twice"),
        ("tls: {acme: {on_demand: {}}}", agreed, "acme.on_demand: ask_url is missing"),
        ("tls: {acme: {on_demand: {ask_url: 'ftp://a/'}}}", agreed, "on_demand.ask_url: \"ftp://a/\" is not"),
        ("tls: {}", agreed, "listeners[0].tls: certificates is missing"),
    ];
    for (listener, acme, expected) in cases {
        let found = said(&text(listener, acme));
        assert!(found.len() == 1 && found[0].contains(expected), "{listener} {acme}: {found:?}");
    }
}
