//! The tracing settings.

use super::super::{Address, Config, Tracing};
use super::{GOOD, mistakes, read};

fn tracing(lines: &str) -> Option<Tracing> {
    read(&format!("{GOOD}{lines}\n")).tracing
}

#[test]
fn tracing_is_off_by_default() {
    assert_eq!(Config::default().tracing, None);
    assert_eq!(tracing("tracing: off"), None);
    assert_eq!(tracing("tracing: {}"), Some(Tracing::default()));
}

#[test]
fn a_collector_is_a_url() {
    for (url, address, path) in [
        ("http://127.0.0.1:4318", "127.0.0.1:4318", "/v1/traces"),
        ("http://[::1]:1/", "[::1]:1", "/"),
        ("http://collector.internal:80/a/b?c=d", "collector.internal:80", "/a/b?c=d"),
    ] {
        let read = tracing(&format!("tracing: {{otlp_endpoint: '{url}'}}")).unwrap().otlp_endpoint;
        assert_eq!(read.address, address.parse::<Address>().unwrap());
        assert_eq!((read.path.as_str(), read.to_string()), (path, format!("http://{address}{path}")));
    }
    for (url, full, authority) in [
        ("https://a.test", "https://a.test:443/v1/traces", "a.test"),
        ("https://a.test:80/x", "https://a.test:80/x", "a.test:80"),
        ("http://[::1]/", "http://[::1]:80/", "[::1]"),
    ] {
        let read = tracing(&format!("tracing: {{otlp_endpoint: '{url}'}}")).unwrap().otlp_endpoint;
        assert_eq!((read.to_string().as_str(), read.authority().as_str()), (full, authority));
    }
    for (url, expected) in [
        ("ftp://a:4318/v1/traces", "is not a URL"),
        ("127.0.0.1:4318", "is not a URL"),
        ("https://host:x/v1/traces", "x"),
        ("http://unix:/a", "has no absolute path"),
        ("http://a:1/b c", "write it as %XX"),
    ] {
        let said = mistakes(&format!("{GOOD}tracing: {{otlp_endpoint: '{url}'}}\n"));
        assert!(said.len() == 1 && said[0].contains(expected), "{said:?}");
    }
}

#[test]
fn sample_ratio_is_from_0_to_1() {
    for (given, read) in [("0", 0.0), ("1", 1.0), ("0.5", 0.5), ("1e-3", 0.001)] {
        assert_eq!(tracing(&format!("tracing: {{sample_ratio: {given}}}")).unwrap().sample_ratio, read);
    }
    for given in ["-0.1", "1.01", ".nan", ".inf", "half", "[]"] {
        let said = mistakes(&format!("{GOOD}tracing: {{sample_ratio: {given}}}\n"));
        assert!(said.len() == 1 && said[0].contains("from 0 to 1"), "{said:?}");
    }
}

#[test]
fn tracing_names_and_numbers_are_limited() {
    let said = mistakes(&format!("{GOOD}tracing: {{buffer_spans_max: 15, service_name: \"a\\nb\", x: 1}}\n"));
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(tracing("tracing: {buffer_spans_max: 16}").is_some(), "the batch size is reduced too");
}
