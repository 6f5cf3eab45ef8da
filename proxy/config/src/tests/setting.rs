//! `--set`, and the short form.

use super::super::{Address, LogFormat, LogOutput, Override, short_form};
use super::{GOOD, mistakes_with, overrides, read, read_with};
use crate::Word;

#[test]
fn any_key_can_be_set() {
    let config = read_with(
        GOOD,
        &[
            "clusters.api.response_timeout_ms=5000",
            "clusters.api.pool.idle_timeout_ms=1",
            "clusters.api.endpoints[0].weight=3",
            "clusters.new={endpoints: ['b:1']}",
            "routes=[{cluster: new}]",
            "listeners[0].name=main",
            "listeners.main.proxy_protocol=off",
            "listeners.0.limits.headers_max=7",
            "error_pages.503=/a",
            "via=true",
        ],
    );
    let api = &config.clusters["api"];
    assert_eq!((api.response_timeout_ms, api.pool.idle_timeout_ms, api.endpoints[0].weight), (5000, 1, 3));
    assert_eq!(config.routes[0].name, "new");
    assert_eq!((config.listeners[0].name.as_str(), config.listeners[0].limits.headers_max), ("main", 7));
    assert!(config.via && config.error_pages.contains_key(&503));
}

#[test]
fn items_are_found_by_name_or_naming_key() {
    let sets = ["listeners.\"127.0.0.1:80\".limits.headers_max=5"];
    assert_eq!(read_with(GOOD, &sets).listeners[0].limits.headers_max, 5);
    let text = format!("{GOOD}routes: [{{cluster: api}}]\n");
    assert_eq!(read_with(&text, &["routes.api.path_prefix=/x"]).routes[0].path_prefix, "/x");
}

#[test]
fn short_forms_can_be_set_and_widened() {
    let config = read_with(
        &format!("{GOOD}access_log: stdout\nadmin: off\n"),
        &["access_log=off", "admin=127.0.0.1:9"],
    );
    assert_eq!(config.access_log.output, LogOutput::Off);
    assert_eq!(config.admin, Some(Address::Ip("127.0.0.1:9".parse().unwrap())));
    let config = read_with(&format!("{GOOD}access_log: /a/b\n"), &["access_log.format=ltsv"]);
    assert_eq!(config.access_log.output, LogOutput::File("/a/b".into()));
    assert_eq!(config.access_log.format, LogFormat::Ltsv);
}

#[test]
fn an_empty_value_restores_the_default_and_the_last_one_wins() {
    let text = format!("{GOOD}user: nobody\n");
    assert_eq!(read_with(&text, &["user="]).user, None);
    assert_eq!(read_with(&text, &["workers=1", "workers=2"]).workers, 2);
}

#[test]
fn mistakes_name_the_flag() {
    for (set, expected) in [
        ("via=3", "--set: via: 3 is a number; write true or false"),
        ("vai=true", "--set: vai: unknown key; did you mean via?"),
        (
            "clusters.b.fail_open=true",
            "--set: clusters.b: endpoints is missing; write a list of addresses, or discover",
        ),
        (
            "listeners.x.name=a",
            "--set: listeners.x.name: listeners has no item x (length 1); write a name or an index from 0",
        ),
        (
            "listeners[1].name=a",
            "--set: listeners[1].name: listeners has no item [1] (length 1); write a name or an index from \
             0",
        ),
        (
            "routes.default.name=a",
            "--set: routes.default.name: routes has no items; --set changes items but cannot add them",
        ),
        ("clusters[0]=a", "--set: clusters[0]: clusters is not a list; write a key instead of the index"),
        (
            "listeners[0].address.port=1",
            "--set: listeners[0].address.port: listeners[0].address is neither a map nor a list; nothing can be set below it",
        ),
    ] {
        let text = format!("{GOOD}  z: {{endpoints: ['z:1']}}\nroutes: [{{cluster: api}}]\n");
        let text = if set.starts_with("routes") { GOOD } else { &text };
        assert_eq!(mistakes_with(text, &[set]), [expected]);
    }
}

#[test]
fn invalid_overrides_are_refused() {
    for text in
        ["", "a", "=1", "a..b=1", "a=[1", "a=!x 1", "a={b: 1, b: 2}", &format!("{}a=1", "a.".repeat(32))]
    {
        assert!(text.parse::<Override>().is_err(), "{text}");
    }
    assert!(format!("{}a=1", "a.".repeat(31)).parse::<Override>().is_ok());
}

#[test]
fn short_form_is_a_normal_file() {
    let text = short_form("127.0.0.1:80", &["10.0.0.1:1".into(), "unix:/a: b".into()]);
    let config =
        super::super::parse("short", &text, &overrides(&["clusters.default.fail_open=false"])).unwrap();
    assert_eq!((config.listeners.len(), config.routes.len(), config.clusters.len()), (1, 1, 1));
    assert_eq!((config.listeners[0].name.as_str(), config.routes[0].name.as_str()), ("default", "default"));
    assert_eq!(config.listeners[0].protocol.word(), "http");
    assert_eq!(config.clusters["default"].endpoints[1].address, Address::Unix("/a: b".into()));
    assert!(!config.clusters["default"].fail_open && config.admin.is_none());
    assert_ne!(config, read(GOOD));
}
