//! The conditions of a route beyond host and path.

use std::net::IpAddr;

use ipnet::IpNet;
use regex::bytes::RegexSet;
use sluice_config::{self as config, Conditions, HeaderMatch, ParameterMatch};

use super::Query;
use super::path::{normalised, on_border};

/// A route that its host and path have led to.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) route: usize,
    conditions: Conditions,
    /// `None` for nearly all routes.
    not: Option<Box<Exceptions>>,
}

/// Requests that a route leaves out, ready to be compared.
#[derive(Clone, Debug)]
struct Exceptions {
    paths: Vec<Vec<u8>>,
    prefixes: Vec<Vec<u8>>,
    patterns: RegexSet,
    conditions: Conditions,
}

impl Rule {
    pub(super) fn new(index: usize, route: &config::Route) -> Self {
        let not = (route.not != config::Exceptions::default()).then(|| Box::new(Exceptions::new(&route.not)));
        Self { route: index, conditions: with_head(&route.conditions), not }
    }

    /// More come first.
    pub(super) fn conditions(&self) -> usize {
        self.conditions.count() + self.not.as_ref().map_or(0, |not| not.count())
    }

    /// The route, if the request is for it. If only the method is another one, adds those that are allowed.
    pub(super) fn matches<'s>(
        &'s self,
        query: &Query<'_>,
        path: &[u8],
        allowed: &mut Vec<&'s str>,
    ) -> Option<usize> {
        let Conditions { listeners, methods, headers, query: parameters, client } = &self.conditions;
        let holds = (listeners.is_empty() || is_on(listeners, query))
            && headers.iter().all(|header| has_field(header, query))
            && parameters.iter().all(|parameter| has_parameter(parameter, query))
            && (client.is_empty() || is_within(client, query.client));
        if !holds || self.not.as_ref().is_some_and(|not| not.apply(query, path)) {
            return None;
        }
        if methods.is_empty() || is_one_of(methods, query) {
            return Some(self.route);
        }
        for method in methods {
            if !allowed.contains(&method.as_str()) {
                allowed.push(method);
            }
        }
        None
    }
}

impl Exceptions {
    fn new(not: &config::Exceptions) -> Self {
        let normal =
            |paths: &[String]| paths.iter().map(|path| normalised(path.as_bytes()).into_owned()).collect();
        let patterns = config::patterns(not.path_regex.iter().map(String::as_str));
        Self {
            paths: normal(&not.path),
            prefixes: normal(&not.path_prefix),
            patterns: patterns.expect("checked with the configuration"),
            conditions: with_head(&not.conditions),
        }
    }

    fn count(&self) -> usize {
        self.paths.len() + self.prefixes.len() + self.patterns.len() + self.conditions.count()
    }

    fn apply(&self, query: &Query<'_>, path: &[u8]) -> bool {
        let Conditions { listeners, methods, headers, query: parameters, client } = &self.conditions;
        self.paths.iter().any(|one| one == path)
            || self.prefixes.iter().any(|prefix| is_below(path, prefix))
            || self.patterns.is_match(path)
            || is_on(listeners, query)
            || is_one_of(methods, query)
            || headers.iter().any(|header| has_field(header, query))
            || parameters.iter().any(|parameter| has_parameter(parameter, query))
            || is_within(client, query.client)
    }
}

/// Whether a path, in its normal form, is below a prefix in that form.
pub fn is_below(path: &[u8], prefix: &[u8]) -> bool {
    prefix == b"/" || (path.starts_with(prefix) && on_border(path, prefix.len()))
}

fn is_on(listeners: &[String], query: &Query<'_>) -> bool {
    listeners.iter().any(|name| name == query.listener)
}

fn is_one_of(methods: &[String], query: &Query<'_>) -> bool {
    methods.iter().any(|method| method.as_bytes() == query.method)
}

fn is_within(networks: &[IpNet], client: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&client))
}

/// Whether one of the fields of that name has the value: applications differ in which one they use.
fn has_field(header: &HeaderMatch, query: &Query<'_>) -> bool {
    let fits = |value: &[u8]| header.value.as_ref().is_none_or(|wanted| wanted.as_bytes() == value);
    (query.has_field)(header.name.as_bytes(), &fits)
}

/// Whether one of the parameters of that name has the value: applications differ in which one they use.
fn has_parameter(parameter: &ParameterMatch, query: &Query<'_>) -> bool {
    let mut pairs = form_urlencoded::parse(query.parameters);
    pairs.any(|(name, value)| {
        *name == *parameter.name && parameter.value.as_ref().is_none_or(|wanted| *value == **wanted)
    })
}

/// A route that allows GET also allows HEAD, which is a GET without the body (RFC 9110 9.3.2).
fn with_head(conditions: &Conditions) -> Conditions {
    let mut conditions = conditions.clone();
    let methods = &mut conditions.methods;
    if let Some(get) = methods.iter().position(|method| method == "GET")
        && !methods.iter().any(|method| method == "HEAD")
    {
        methods.insert(get + 1, "HEAD".to_owned());
    }
    conditions
}
