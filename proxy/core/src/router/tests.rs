//! Compares the router with a list scan that follows the documented order literally.
#![allow(clippy::unwrap_used)]

use std::cmp::Reverse;

use proptest::prelude::*;
use sluice_config::{Action, HeaderEdits, HeaderMatch, Route, RouteDirect};

use super::*;

fn route(hosts: &[&str], prefix: &str, methods: &[&str], headers: &[(&str, Option<&str>)]) -> Route {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let header = |&(name, value): &(&str, Option<&str>)| HeaderMatch {
        name: name.to_owned(),
        value: value.map(str::to_owned),
    };
    Route {
        name: String::new(),
        listeners: Vec::new(),
        hosts: owned(hosts),
        path_prefix: prefix.to_owned(),
        methods: owned(methods),
        headers: headers.iter().map(header).collect(),
        action: Action::Cluster("c".to_owned()),
        strip_prefix: false,
        host_rewrite: None,
        request_headers: HeaderEdits::default(),
        response_headers: HeaderEdits::default(),
        direct_return: RouteDirect::Auto,
        buffering: sluice_config::Buffering::default(),
        response_timeout_ms: None,
        body_idle_timeout_ms: None,
        retry: None,
    }
}

fn find(routes: &[Route], host: &str, path: &str, method: &str, fields: &[(&str, &str)]) -> RouteMatch {
    let field = |name: &[u8]| {
        let found = fields.iter().find(|(known, _)| known.as_bytes() == name);
        found.map(|(_, value)| value.as_bytes())
    };
    Router::new(routes).find(&Query {
        listener: "main",
        host: host.as_bytes(),
        path: path.as_bytes(),
        method: method.as_bytes(),
        field: &field,
    })
}

#[test]
fn a_route_applies_to_the_listeners_that_it_names() {
    let on = |names: &[&str]| Route {
        listeners: names.iter().map(|name| (*name).to_owned()).collect(),
        ..route(&["inner.example"], "/", &[], &[])
    };
    let elsewhere = [on(&["private"]), route(&[], "/", &[], &[])];
    assert_eq!(find(&elsewhere, "inner.example", "/", "GET", &[]), RouteMatch::Route(1));
    let here = [route(&["inner.example"], "/", &[], &[]), on(&["private", "main"])];
    assert_eq!(
        find(&here, "inner.example", "/", "GET", &[]),
        RouteMatch::Route(1),
        "the listener is a condition"
    );
}

#[test]
fn specificity_is_host_then_prefix_then_conditions_then_order() {
    let routes = [
        route(&[], "/api/v1", &["GET"], &[("x", None)]),
        route(&["*.example.com"], "/api", &[], &[]),
        route(&["*.a.example.com"], "/", &[], &[]),
        route(&["w.a.example.com"], "/", &[], &[]),
        route(&["w.a.example.com"], "/api", &[], &[]),
        route(&["w.a.example.com"], "/api", &["GET"], &[]),
        route(&["w.a.example.com"], "/api", &[], &[("x", Some("1"))]),
        route(&["w.a.example.com"], "/api", &["GET"], &[("x", Some("1"))]),
    ];
    let get = |host, path, fields: &[_]| find(&routes, host, path, "GET", fields);
    assert_eq!(get("W.A.Example.COM.", "/api/v1", &[("x", "1")]), RouteMatch::Route(7));
    assert_eq!(get("w.a.example.com", "/api/v1", &[("x", "2")]), RouteMatch::Route(5));
    assert_eq!(find(&routes, "w.a.example.com", "/api", "PUT", &[("x", "1")]), RouteMatch::Route(6));
    assert_eq!(get("w.a.example.com", "/apix", &[]), RouteMatch::Route(3));
    assert_eq!(get("v.a.example.com", "/api", &[]), RouteMatch::Route(2));
    assert_eq!(get("a.example.com", "/api", &[]), RouteMatch::Route(1));
    assert_eq!(get("example.com", "/api/v1", &[("x", "")]), RouteMatch::Route(0));
    assert_eq!(get("example.com", "/api/v1", &[]), RouteMatch::NoRoute);
    assert_eq!(get(".example.com", "/api", &[]), RouteMatch::NoRoute);
}

#[test]
fn a_host_without_a_match_falls_back() {
    let routes = [route(&[], "/", &[], &[]), route(&["a.b"], "/x", &["PUT"], &[])];
    assert_eq!(find(&routes, "a.b", "/y", "GET", &[]), RouteMatch::Route(0));
    assert_eq!(find(&routes, "a.b", "/x", "GET", &[]), RouteMatch::Route(0));
    assert_eq!(find(&routes, "a.b", "/x", "PUT", &[]), RouteMatch::Route(1));
}

#[test]
fn prefixes_end_at_segment_boundaries() {
    let bare = [route(&[], "/api", &[], &[])];
    let below = [route(&[], "/api/", &[], &[])];
    for (path, by_bare, by_below) in [
        ("/api", true, false),
        ("/api/", true, true),
        ("/api/x", true, true),
        ("/apix", false, false),
        ("/api/../x", false, false),
        ("/api/%2e%2E/x", false, false),
        ("/x/../api/y", true, true),
    ] {
        let matched = |routes| find(routes, "h", path, "GET", &[]) == RouteMatch::Route(0);
        assert_eq!((matched(&bare), matched(&below)), (by_bare, by_below), "{path}");
    }
}

#[test]
fn the_root_prefix_matches_the_asterisk_form() {
    let routes = [route(&["h"], "/", &[], &[])];
    assert_eq!(find(&routes, "h", "*", "OPTIONS", &[]), RouteMatch::Route(0));
}

#[test]
fn method_not_allowed_names_every_matching_method() {
    let routes = [
        route(&["h"], "/a", &["GET", "PUT"], &[]),
        route(&[], "/", &["PUT", "POST"], &[]),
        route(&[], "/", &["TRACE"], &[("x", None)]),
    ];
    let allowed = ["GET", "HEAD", "PUT", "POST"].map(str::to_owned).to_vec();
    assert_eq!(find(&routes, "h", "/a", "get", &[]), RouteMatch::MethodNotAllowed(allowed));
}

#[test]
fn hosts_longer_than_any_dns_name_still_match() {
    let long = format!("{}.example.com", "A".repeat(300));
    let routes = [route(&["*.example.com"], "/", &[], &[])];
    assert_eq!(find(&routes, &long, "/", "GET", &[]), RouteMatch::Route(0));
}

/// How specific the route's best matching host is.
fn model_host(route: &Route, host: &str) -> Option<usize> {
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let rank = |pattern: &String| match pattern.strip_prefix('*') {
        Some(suffix) => (host.len() > suffix.len() && host.ends_with(suffix)).then_some(suffix.len()),
        None => (*pattern == host).then_some(usize::MAX),
    };
    match route.hosts.is_empty() {
        true => Some(0),
        false => route.hosts.iter().filter_map(rank).max(),
    }
}

fn model(routes: &[Route], host: &str, path: &str, method: &str, fields: &[(&str, &str)]) -> Option<usize> {
    let fits = |route: &&Route| {
        let prefix = route.path_prefix.trim_end_matches('/');
        let below = path.starts_with(&format!("{prefix}/"));
        let prefix_fits = below || (path == prefix && !route.path_prefix.ends_with('/'));
        let allows = |name: &str| route.methods.iter().any(|known| known == name);
        let method_fits = route.methods.is_empty() || allows(method) || (method == "HEAD" && allows("GET"));
        let field_fits = |wanted: &HeaderMatch| {
            let first = fields.iter().find(|(name, _)| *name == wanted.name);
            first.is_some_and(|(_, value)| wanted.value.as_deref().is_none_or(|exact| exact == *value))
        };
        prefix_fits && method_fits && route.headers.iter().all(field_fits)
    };
    let ranked = routes.iter().enumerate().filter(|(_, route)| fits(route));
    ranked
        .filter_map(|(index, route)| {
            let conditions = usize::from(!route.methods.is_empty()) + route.headers.len();
            Some((model_host(route, host)?, route.path_prefix.len(), conditions, Reverse(index)))
        })
        .max()
        .map(|(.., Reverse(index))| index)
}

fn any_route() -> impl Strategy<Value = Route> {
    let host = prop::sample::select(vec!["a.b", "c.a.b", "*.b", "*.a.b", "*.c.a.b"]);
    let prefix = prop::sample::select(vec!["/", "/x", "/x/", "/x/y", "/xy", "/x/y/z"]);
    let method = prop::sample::select(vec!["GET", "PUT"]);
    let value = prop::option::of(prop::sample::select(vec!["1", "2"]));
    let header = (prop::sample::select(vec!["k", "l"]), value);
    let hosts = prop::collection::vec(host, 0..3);
    let headers = prop::collection::vec(header, 0..3);
    (hosts, prefix, prop::collection::vec(method, 0..2), headers)
        .prop_map(|(hosts, prefix, methods, headers)| route(&hosts, prefix, &methods, &headers))
}

proptest! {
    #[test]
    fn agrees_with_a_list_scan(
        routes in prop::collection::vec(any_route(), 0..12),
        host in "(([cC]\\.)?[aA]\\.)?[bB]\\.?",
        path in "/(x(y|/|/y|/y/z)?)?",
        method in "GET|PUT|POST|HEAD",
        fields in prop::collection::vec(("k|l", "1|2"), 0..3),
    ) {
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = model(&routes, &host, &path, &method, &fields);
        let found = find(&routes, &host, &path, &method, &fields);
        match expected {
            Some(index) => prop_assert_eq!(found, RouteMatch::Route(index)),
            None => {
                let other = ["GET", "PUT"].iter().any(|other| model(&routes, &host, &path, other, &fields).is_some());
                prop_assert_eq!(matches!(found, RouteMatch::MethodNotAllowed(_)), other);
            }
        }
    }
}
