//! Maps a request's host, path and other properties to a route. Pure: built once from the configuration, then only read.
//!
//! Parsing a request, determining its host, and the actions of a route are elsewhere.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;

use paths::Paths;
use rule::Rule;
use sluice_config as config;

mod path;
mod paths;
mod rewrite;
mod rule;
#[cfg(test)]
mod tests;

pub use path::{encoded_path, normalised, strip_prefix, without_dot_segments};
pub use rewrite::Rewrite;
pub use rule::is_below;

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
    /// The query as sent, without its question mark.
    pub parameters: &'a [u8],
    /// Method as sent; methods are case-sensitive (RFC 9110 9.1).
    pub method: &'a [u8],
    /// Address of the client.
    pub client: IpAddr,
    /// Whether one of the fields of a lower-case name has a value that fits.
    pub has_field: &'a dyn Fn(&[u8], ValueTest<'_>) -> bool,
}

/// Whether a value fits.
pub type ValueTest<'a> = &'a dyn Fn(&[u8]) -> bool;

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
    exact: HashMap<Box<[u8]>, Paths>,
    /// Keyed by the part after `*.`.
    wildcard: HashMap<Box<[u8]>, Paths>,
    any: Paths,
}

impl Router {
    /// Indexes `routes`; the indices in its results are positions in that slice.
    pub fn new(routes: &[config::Route]) -> Router {
        let mut router = Router { exact: HashMap::new(), wildcard: HashMap::new(), any: Paths::default() };
        for (index, route) in routes.iter().enumerate() {
            let rule = Rule::new(index, route);
            if route.hosts.is_empty() {
                router.any.insert(rule.clone(), route);
            }
            for host in &route.hosts {
                router.paths_of(host).insert(rule.clone(), route);
            }
        }
        let all = router.exact.values_mut().chain(router.wildcard.values_mut());
        let mut compiled = HashMap::new();
        all.chain([&mut router.any]).for_each(|paths| paths.sort(&mut compiled));
        router
    }

    /// Finds the most specific route that matches: exact host, then longest wildcard, then any host; within a host the
    /// whole path, then the first expression of the file, then the longest prefix; within a path or prefix the most
    /// conditions (the listeners are one, the methods are one, each field is one); then file order. A host without a
    /// match falls back to less specific ones.
    ///
    /// Paths are compared in their [`normalised`] form, so no spelling avoids a route. Does not allocate, except for
    /// expressions, for paths that are not in that form, for hosts over 256 bytes, and for `MethodNotAllowed`.
    pub fn find(&self, query: &Query<'_>) -> RouteMatch {
        let mut inline = [0; HOST_BYTES_INLINE];
        let host = lower_case(query.host, &mut inline);
        let path = normalised(query.path);
        let mut allowed = Vec::new();
        let found = self.hosts(&host).find_map(|paths| paths.find(query, &path, &mut allowed));
        match found {
            Some(route) => RouteMatch::Route(route),
            None if allowed.is_empty() => RouteMatch::NoRoute,
            None => RouteMatch::MethodNotAllowed(allowed.into_iter().map(str::to_owned).collect()),
        }
    }

    /// The tables that apply to a lower-case host, most specific first.
    fn hosts<'s>(&'s self, host: &'s [u8]) -> impl Iterator<Item = &'s Paths> {
        let dots = memchr::memchr_iter(b'.', host).filter(|&dot| dot > 0);
        let wildcards =
            dots.filter(|_| !self.wildcard.is_empty()).filter_map(|dot| self.wildcard.get(&host[dot + 1..]));
        let exact = self.exact.get(host).into_iter();
        exact.chain(wildcards).chain([&self.any])
    }

    fn paths_of(&mut self, host: &str) -> &mut Paths {
        let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let (table, name) = match host.strip_prefix("*.") {
            _ if host == "*" => return &mut self.any,
            Some(suffix) => (&mut self.wildcard, suffix),
            None => (&mut self.exact, host.as_str()),
        };
        table.entry(name.as_bytes().into()).or_default()
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
