//! Maps host, path, method and fields to a route. Pure: built once from the configuration, then only read.
//!
//! Parsing a request, determining its host, and the actions of a route are elsewhere.

use std::borrow::Cow;
use std::collections::HashMap;

use sluice_config as config;

mod path;
#[cfg(test)]
mod tests;

pub use path::{normalised, strip_prefix};

/// Host names up to this many bytes are lower-cased without an allocation; DNS allows 253.
const HOST_BYTES_INLINE: usize = 256;

/// The parts of a request that the router uses.
pub struct Query<'a> {
    /// Name of the listener that accepted the request.
    pub listener: &'a str,
    /// Host name without a port, in any case; one trailing dot is ignored.
    pub host: &'a [u8],
    /// Path as sent, without the query.
    pub path: &'a [u8],
    /// Method as sent; methods are case-sensitive (RFC 9110 9.1).
    pub method: &'a [u8],
    /// First value of a field by its lower-case name.
    pub field: &'a dyn Fn(&[u8]) -> Option<&'a [u8]>,
}

/// The router's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteMatch {
    /// Index of the route in `config.routes`.
    Route(usize),
    /// Routes match except for the method; contains every method they allow, for `Allow` (RFC 9110 15.5.6).
    MethodNotAllowed(Vec<String>),
    /// Nothing matches.
    NoRoute,
}

/// Every route, indexed by host and prefix.
#[derive(Debug)]
pub struct Router {
    exact: HashMap<Box<[u8]>, Prefixes>,
    /// Keyed by the part after `*.`.
    wildcard: HashMap<Box<[u8]>, Prefixes>,
    any: Prefixes,
}

/// The routes of one host, by prefix.
#[derive(Debug, Default)]
struct Prefixes {
    /// Distinct lengths of the keys below, longest first: one lookup per length, regardless of the number of routes.
    lengths: Vec<usize>,
    /// The prefix `/` is stored as the empty prefix, so that it also matches `*` (RFC 9112 3.2.4).
    by_prefix: HashMap<Box<[u8]>, Vec<Rule>>,
}

/// The conditions of a route beyond host and prefix.
#[derive(Clone, Debug)]
struct Rule {
    route: usize,
    /// Names of the listeners that it applies to; empty means all.
    listeners: Vec<String>,
    methods: Vec<String>,
    headers: Vec<config::HeaderMatch>,
}

impl Router {
    /// Indexes `routes`; the indices in its results are positions in that slice.
    pub fn new(routes: &[config::Route]) -> Router {
        let mut router = Router { exact: HashMap::new(), wildcard: HashMap::new(), any: Prefixes::default() };
        for (index, route) in routes.iter().enumerate() {
            if route.hosts.is_empty() {
                router.any.insert(index, route);
            }
            for host in &route.hosts {
                router.prefixes_of(host).insert(index, route);
            }
        }
        let all = router.exact.values_mut().chain(router.wildcard.values_mut());
        all.chain([&mut router.any]).for_each(Prefixes::sort);
        router
    }

    /// Finds the most specific route that matches: exact host, then longest wildcard, then any host; within a host the
    /// longest prefix; within a prefix the most conditions (the listeners are one, the methods are one, each field is
    /// one); then file order. A host without a match falls back to less specific ones.
    ///
    /// Path and prefixes are compared in their [`normalised`] form, so no spelling avoids a prefix. Does not allocate,
    /// except for paths that are not in that form, for hosts over 256 bytes, and for `MethodNotAllowed`.
    pub fn find(&self, query: &Query<'_>) -> RouteMatch {
        let mut inline = [0; HOST_BYTES_INLINE];
        let host = lower_case(query.host, &mut inline);
        let path = normalised(query.path);
        let mut allowed = Vec::new();
        let found = self.hosts(&host).find_map(|prefixes| prefixes.find(query, &path, &mut allowed));
        match found {
            Some(route) => RouteMatch::Route(route),
            None if allowed.is_empty() => RouteMatch::NoRoute,
            None => RouteMatch::MethodNotAllowed(allowed.into_iter().map(str::to_owned).collect()),
        }
    }

    /// The tables that apply to a lower-case host, most specific first.
    fn hosts<'s>(&'s self, host: &'s [u8]) -> impl Iterator<Item = &'s Prefixes> {
        let dots = memchr::memchr_iter(b'.', host).filter(|&dot| dot > 0);
        let wildcards =
            dots.filter(|_| !self.wildcard.is_empty()).filter_map(|dot| self.wildcard.get(&host[dot + 1..]));
        let exact = self.exact.get(host).into_iter();
        exact.chain(wildcards).chain([&self.any])
    }

    fn prefixes_of(&mut self, host: &str) -> &mut Prefixes {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let (table, name) = match host.strip_prefix("*.") {
            _ if host == "*" => return &mut self.any,
            Some(suffix) => (&mut self.wildcard, suffix),
            None => (&mut self.exact, host.as_str()),
        };
        table.entry(name.as_bytes().into()).or_default()
    }
}

impl Prefixes {
    fn insert(&mut self, index: usize, route: &config::Route) {
        let prefix = normalised(route.path_prefix.as_bytes());
        let prefix: &[u8] = if *prefix == *b"/" { b"" } else { &prefix };
        let rules = self.by_prefix.entry(prefix.into()).or_default();
        // A route that names a host twice is still one route.
        if rules.last().is_some_and(|rule| rule.route == index) {
            return;
        }
        let (listeners, headers) = (route.listeners.clone(), route.headers.clone());
        rules.push(Rule { route: index, listeners, methods: with_head(&route.methods), headers });
    }

    fn sort(&mut self) {
        self.lengths = self.by_prefix.keys().map(|prefix| prefix.len()).collect();
        self.lengths.sort_unstable_by(|a, b| b.cmp(a));
        self.lengths.dedup();
        for rules in self.by_prefix.values_mut() {
            // Stable, so that file order decides between equals.
            rules.sort_by_key(|rule| std::cmp::Reverse(rule.conditions()));
        }
    }

    fn find<'s>(&'s self, query: &Query<'_>, path: &[u8], allowed: &mut Vec<&'s str>) -> Option<usize> {
        let lengths = self.lengths.iter().copied();
        lengths
            .filter(|&length| on_border(path, length))
            .filter_map(|length| self.by_prefix.get(&path[..length]))
            .flatten()
            .find_map(|rule| rule.matches(query, allowed))
    }
}

impl Rule {
    fn conditions(&self) -> usize {
        usize::from(!self.listeners.is_empty()) + usize::from(!self.methods.is_empty()) + self.headers.len()
    }

    fn matches<'s>(&'s self, query: &Query<'_>, allowed: &mut Vec<&'s str>) -> Option<usize> {
        let holds =
            |header: &config::HeaderMatch| match (&header.value, (query.field)(header.name.as_bytes())) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(wanted), Some(value)) => wanted.as_bytes() == value,
            };
        let is_here = self.listeners.is_empty() || self.listeners.iter().any(|name| name == query.listener);
        if !is_here || !self.headers.iter().all(holds) {
            return None;
        }
        let methods = || self.methods.iter().map(String::as_str);
        if self.methods.is_empty() || methods().any(|method| method.as_bytes() == query.method) {
            return Some(self.route);
        }
        for method in methods() {
            if !allowed.contains(&method) {
                allowed.push(method);
            }
        }
        None
    }
}

/// A route that allows GET also allows HEAD, which is a GET without the body (RFC 9110 9.3.2).
fn with_head(methods: &[String]) -> Vec<String> {
    let mut methods = methods.to_vec();
    if let Some(get) = methods.iter().position(|method| method == "GET")
        && !methods.iter().any(|method| method == "HEAD")
    {
        methods.insert(get + 1, "HEAD".to_owned());
    }
    methods
}

/// Whether the first `length` bytes of a path end at a segment boundary.
fn on_border(path: &[u8], length: usize) -> bool {
    match length {
        0 => true,
        _ if length > path.len() => false,
        _ => length == path.len() || path[length - 1] == b'/' || path[length] == b'/',
    }
}

fn lower_case<'a>(host: &'a [u8], inline: &'a mut [u8; HOST_BYTES_INLINE]) -> Cow<'a, [u8]> {
    let host = host.strip_suffix(b".").unwrap_or(host);
    if !host.iter().any(u8::is_ascii_uppercase) {
        return Cow::Borrowed(host);
    }
    match inline.get_mut(..host.len()) {
        Some(space) => {
            space.copy_from_slice(host);
            space.make_ascii_lowercase();
            Cow::Borrowed(space)
        }
        None => Cow::Owned(host.to_ascii_lowercase()),
    }
}
