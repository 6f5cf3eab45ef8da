//! Compares the router with a list scan that follows the documented order literally.
#![allow(clippy::unwrap_used)]

use std::cmp::Reverse;

use proptest::prelude::*;
use sluice_config::{Action, Conditions, Exceptions, HeaderMatch, ParameterMatch, Route};

use super::*;

fn route(hosts: &[&str], prefix: &str, methods: &[&str], headers: &[(&str, Option<&str>)]) -> Route {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let header = |&(name, value): &(&str, Option<&str>)| HeaderMatch {
        name: name.to_owned(),
        value: value.map(str::to_owned),
    };
    let conditions = Conditions {
        methods: owned(methods),
        headers: headers.iter().map(header).collect(),
        ..Conditions::default()
    };
    let action = Action::Cluster("c".to_owned());
    Route { hosts: owned(hosts), path_prefix: prefix.to_owned(), conditions, ..Route::new("", action) }
}

fn find(routes: &[Route], host: &str, path: &str, method: &str, fields: &[(&str, &str)]) -> RouteMatch {
    let has_field = |name: &[u8], fits: &dyn Fn(&[u8]) -> bool| {
        fields.iter().any(|(known, value)| known.as_bytes() == name && fits(value.as_bytes()))
    };
    Router::new(routes).find(&Query {
        listener: "main",
        host: host.as_bytes(),
        path: path.as_bytes(),
        parameters: b"",
        client: IpAddr::from([192, 0, 2, 1]),
        method: method.as_bytes(),
        has_field: &has_field,
    })
}

/// The number of the route that serves a target of `h`, by GET, without fields.
fn served(routes: &[Route], target: &str, client: &str) -> Option<usize> {
    let (path, parameters) = target.split_once('?').unwrap_or((target, ""));
    let found = Router::new(routes).find(&Query {
        listener: "main",
        host: b"h",
        path: path.as_bytes(),
        parameters: parameters.as_bytes(),
        client: client.parse().unwrap(),
        method: b"GET",
        has_field: &|_, _| false,
    });
    match found {
        RouteMatch::Route(index) => Some(index),
        _ => None,
    }
}

fn whole(path: &str) -> Route {
    Route { path: Some(path.to_owned()), ..route(&[], "/", &[], &[]) }
}

fn matching(pattern: &str) -> Route {
    Route { path_regex: Some(pattern.to_owned()), ..route(&[], "/", &[], &[]) }
}

const CLIENT: &str = "192.0.2.1";

#[test]
fn a_whole_path_comes_before_expressions_and_those_before_prefixes() {
    let routes = [
        route(&[], "/a/b.php", &[], &[]),
        matching("[.]php$"),
        whole("/a/b.php"),
        matching("^/a/"),
        route(&[], "/", &[], &[]),
    ];
    for (target, wanted) in [
        ("/a/b.php", 2),
        ("/a/./%62.php?x", 2),
        ("/a/c.php", 1),
        ("/a/b.php/", 3),
        ("/a/b.phpx", 3),
        ("/a", 4),
        ("/b/../a/x", 3),
        ("/x%2Ephp", 1),
        ("/x%FF%0A.php", 1),
        ("/a/%ff", 3),
    ] {
        assert_eq!(served(&routes, target, CLIENT), Some(wanted), "{target}");
    }
}

#[test]
fn an_expression_whose_conditions_fail_leaves_the_request_to_the_next() {
    let mut first = matching("^/a");
    first.conditions.methods = vec!["PUT".to_owned()];
    let routes = [first, matching("^/a/b"), route(&[], "/a", &[], &[])];
    assert_eq!(served(&routes, "/a/b", CLIENT), Some(1));
    assert_eq!(served(&routes, "/a/c", CLIENT), Some(2));
}

#[test]
fn parameters_are_compared_decoded_and_any_occurrence_counts() {
    let parameter = |name: &str, value: Option<&str>| ParameterMatch {
        name: name.to_owned(),
        value: value.map(str::to_owned),
    };
    let mut beta = route(&[], "/", &[], &[]);
    beta.conditions.query = vec![parameter("be ta", Some("1")), parameter("x", None)];
    for (target, matches) in [
        ("/?be+ta=1&x", true),
        ("/?x=2&be%20ta=%31", true),
        ("/?be+ta=0&be+ta=1&x=", true),
        ("/?be+ta=1", false),
        ("/?be+ta=10&x", false),
        ("/?Be+ta=1&x", false),
        ("/", false),
    ] {
        assert_eq!(served(std::slice::from_ref(&beta), target, CLIENT).is_some(), matches, "{target}");
    }
}

#[test]
fn a_client_is_compared_with_networks() {
    let mut inside = route(&[], "/", &[], &[]);
    inside.conditions.client = vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
    let routes = [route(&[], "/", &[], &[]), inside];
    for (client, wanted) in [("10.1.2.3", 1), ("2001:db8:1::1", 1), ("11.0.0.1", 0), ("2001:db9::1", 0)] {
        assert_eq!(served(&routes, "/", client), Some(wanted), "{client}");
    }
}

#[test]
fn one_exception_that_holds_leaves_a_request_out() {
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut most = route(&[], "/", &[], &[]);
    most.not = Exceptions {
        path: texts(&["/up"]),
        path_prefix: texts(&["/admin", "/x/"]),
        path_regex: texts(&["[.]env$"]),
        conditions: Conditions { client: vec!["203.0.113.0/24".parse().unwrap()], ..Conditions::default() },
    };
    let routes = [route(&[], "/", &[], &[]), most];
    for (target, client, wanted) in [
        ("/", CLIENT, 1),
        ("/up", CLIENT, 0),
        ("/%75p", CLIENT, 0),
        ("/up/", CLIENT, 1),
        ("/admin", CLIENT, 0),
        ("//admin/x", CLIENT, 0),
        ("/admins", CLIENT, 1),
        ("/x", CLIENT, 1),
        ("/x/y", CLIENT, 0),
        ("/a/.env", CLIENT, 0),
        ("/", "203.0.113.9", 0),
    ] {
        assert_eq!(served(&routes, target, client), Some(wanted), "{target} {client}");
    }
}

#[test]
fn a_route_applies_to_the_listeners_that_it_names() {
    let on = |names: &[&str]| Route {
        conditions: Conditions {
            listeners: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Conditions::default()
        },
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
        let conditions = &route.conditions;
        let allows = |name: &str| conditions.methods.iter().any(|known| known == name);
        let method_fits =
            conditions.methods.is_empty() || allows(method) || (method == "HEAD" && allows("GET"));
        let field_fits = |wanted: &HeaderMatch| {
            // Of several fields, one is enough.
            let fits = |value: &str| wanted.value.as_deref().is_none_or(|exact| exact == value);
            fields.iter().any(|(name, value)| *name == wanted.name && fits(value))
        };
        path_fits(route, path, prefix_fits) && method_fits && conditions.headers.iter().all(field_fits)
    };
    let ranked = routes.iter().enumerate().filter(|(_, route)| fits(route));
    ranked
        .filter_map(|(index, route)| {
            let place = match (&route.path, &route.path_regex) {
                (Some(_), _) => (2, 0, 0),
                // The order in the file comes before the conditions.
                (None, Some(_)) => (1, usize::MAX - index, 0),
                (None, None) => (0, route.path_prefix.len(), 0),
            };
            Some((model_host(route, host)?, place, route.conditions.count(), Reverse(index)))
        })
        .max()
        .map(|(.., Reverse(index))| index)
}

/// Expressions are compared by the crate that the router uses; what is tested is their place in the order.
fn path_fits(route: &Route, path: &str, prefix_fits: bool) -> bool {
    match (&route.path, &route.path_regex) {
        (Some(whole), _) => whole == path,
        (None, Some(pattern)) => regex::Regex::new(pattern).unwrap().is_match(path),
        (None, None) => prefix_fits,
    }
}

fn any_route() -> impl Strategy<Value = Route> {
    let host = prop::sample::select(vec!["a.b", "c.a.b", "*.b", "*.a.b", "*.c.a.b"]);
    let prefix = prop::sample::select(vec!["/", "/x", "/x/", "/x/y", "/xy", "/x/y/z"]);
    let method = prop::sample::select(vec!["GET", "PUT"]);
    let value = prop::option::of(prop::sample::select(vec!["1", "2"]));
    let header = (prop::sample::select(vec!["k", "l"]), value);
    let hosts = prop::collection::vec(host, 0..3);
    let headers = prop::collection::vec(header, 0..3);
    let pattern = prop::sample::select(vec!["^/x", "/y$", "y", "^/x/y/"]);
    let place = prop_oneof![
        4 => Just((None, None)),
        1 => prefix.clone().prop_map(|path: &str| (Some(path.to_owned()), None)),
        1 => pattern.prop_map(|pattern: &str| (None, Some(pattern.to_owned()))),
    ];
    (hosts, prefix, prop::collection::vec(method, 0..2), headers, place).prop_map(
        |(hosts, prefix, methods, headers, (path, path_regex))| {
            let prefix = if path.is_some() || path_regex.is_some() { "/" } else { prefix };
            Route { path, path_regex, ..route(&hosts, prefix, &methods, &headers) }
        },
    )
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
