//! Rules that span several keys: names that must exist or be unique, keys that need each other.
//!
//! Works on the values that were read, with the paths of the file; opens no files.

use std::collections::HashMap;

use super::nearest::nearest;
use super::path::Path;
use super::problem::{Problems, quote};
use super::{
    Action, Address, Auth, ClientAuthMode, Config, Http2, Listener, Protocol, Route, Sharing, passthrough,
    patterns, validate_acme, validate_tls,
};

/// Limits are shared by a store, and exact ones by Redis.
fn shared_limits(config: &Config, problems: &Problems) {
    for (name, limit) in &config.rate_limits {
        let mistake = match (limit.shared, &config.store) {
            (Sharing::Alone, _) => continue,
            (_, None) => "it has no effect without store; write both",
            (Sharing::Exact, Some(store)) if store.redis.is_none() => {
                "exact limits are counted in Redis; write store: {redis: …}, or shared: true"
            }
            (..) => continue,
        };
        problems.add(&Path::root().key("rate_limits").key(name).key("shared"), mistake);
    }
}

/// Reports every mistake between keys.
///
/// `routes_given` says whether the file has `routes`.
pub(super) fn check(config: &Config, routes_given: bool, problems: &Problems) {
    listeners(config, problems);
    addresses(config, problems);
    admin(config, problems);
    validate_acme::check(config, problems);
    shared_limits(config, problems);
    let access = Path::root().key("access");
    for (index, rule) in config.access.iter().enumerate() {
        for (position, name) in rule.listeners.iter().enumerate() {
            let path = access.index(index).key("listeners").index(position);
            existing_listener(config, name, &path, problems);
        }
    }
    if routes_given {
        routes(config, problems);
    }
    // A listener that redirects everything to https uses no routes.
    let routes_on =
        |listener: &Listener| listener.protocol == Protocol::Http && listener.redirect_to_https.is_none();
    let http = config.listeners.iter().any(routes_on);
    // With deployed services and a place for them, a file needs no clusters.
    let has_place = config.services.state_file.is_some() || config.store.is_some();
    let only_services = config.clusters.is_empty() && has_place;
    if http && config.routes.is_empty() && !only_services {
        let message = if config.clusters.is_empty() {
            "no clusters; write clusters, or routes that redirect or respond"
        } else {
            "routes is missing; with more than one cluster, write which request goes where"
        };
        problems.add(&Path::root().key("routes"), message);
    }
}

fn listeners(config: &Config, problems: &Problems) {
    let root = Path::root().key("listeners");
    if config.listeners.is_empty() {
        problems.add(&root, "no listeners; write at least one with an address");
    }
    let mut names = HashMap::new();
    for (index, listener) in config.listeners.iter().enumerate() {
        let path = root.index(index);
        if !is_placeholder(&listener.address) || listener.name != listener.address.to_string() {
            unique(&mut names, &listener.name, index, &path.key("name"), "listeners", problems);
        }
        listener_cluster(config, listener, &path, problems);
        validate_tls::check(listener, &path, problems);
    }
}

fn listener_cluster(config: &Config, listener: &Listener, path: &Path, problems: &Problems) {
    if listener.protocol == Protocol::Tcp && listener.http2 != Http2::Auto {
        problems.add(&path.key("http2"), "a tcp listener speaks no HTTP; remove it, or write protocol: http");
    }
    match (listener.protocol, &listener.cluster) {
        (Protocol::Http, Some(_)) => {
            problems
                .add(&path.key("cluster"), "an http listener has no cluster; write routes, or protocol: tcp");
        }
        (Protocol::Tcp, None) => {
            problems.add(path, "cluster is missing; write the cluster that this tcp listener tunnels to")
        }
        (Protocol::Tcp | Protocol::TlsPassthrough, Some(name)) => {
            known_cluster(config, name, &path.key("cluster"), problems)
        }
        (Protocol::Http | Protocol::TlsPassthrough, None) => {}
    }
    passthrough::check(listener, path, &config.clusters, problems, |name, path| {
        known_cluster(config, name, path, problems)
    });
}

fn routes(config: &Config, problems: &Problems) {
    let root = Path::root().key("routes");
    let mut names = HashMap::new();
    for (index, route) in config.routes.iter().enumerate() {
        let path = root.index(index);
        unique(&mut names, &route.name, index, &path.key("name"), "routes", problems);
        if let Action::Cluster(name) = &route.action {
            known_cluster(config, name, &path.key("cluster"), problems);
        }
        for (index, name) in route.rate_limits.iter().enumerate() {
            let path = path.key("rate_limits").index(index);
            known_limit(config, name, &path, problems);
            if route.rate_limits[..index].contains(name) {
                problems.add(&path, format!("{} is listed before; remove one", quote(name)));
            }
        }
        if let Some(name) = &route.cache {
            known_cache(config, name, &path.key("cache"), problems);
        }
        if matches!(route.auth, Some(Auth::Certificate(_))) && !asks_for_certificates(config) {
            let path = path.key("auth").key("certificate");
            problems.add(&path, "no listener asks clients for certificates; write tls.client_auth for one");
        }
        for (index, name) in route.conditions.listeners.iter().enumerate() {
            known_listener(config, name, &path.key("listeners").index(index), problems);
        }
        for (index, name) in route.not.conditions.listeners.iter().enumerate() {
            known_listener(config, name, &path.key("not").key("listeners").index(index), problems);
        }
    }
    patterns_fit(config, problems);
}

fn asks_for_certificates(config: &Config) -> bool {
    let mut tls = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    tls.any(|tls| tls.client_auth.mode != ClientAuthMode::Off)
}

/// Each expression was checked alone; together they must not take too much memory.
fn patterns_fit(config: &Config, problems: &Problems) {
    let of_route = |route: &'_ Route| -> Vec<String> {
        route.path_regex.iter().chain(&route.not.path_regex).cloned().collect()
    };
    let all: Vec<String> = config.routes.iter().flat_map(of_route).collect();
    if all.is_empty() {
        return;
    }
    if patterns(all.iter().map(String::as_str)).is_err() {
        let message = format!(
            "the {} expressions take too much memory together; write fewer or simpler ones",
            all.len()
        );
        problems.add(&Path::root().key("routes"), message);
    }
}

fn known_limit(config: &Config, name: &str, path: &Path, problems: &Problems) {
    if config.rate_limits.contains_key(name) {
        return;
    }
    let known: Vec<&str> = config.rate_limits.keys().map(String::as_str).collect();
    let hint = match nearest(name, &known) {
        Some(near) => format!("did you mean {near}?"),
        None => "write the name of one under rate_limits".to_owned(),
    };
    problems.add(path, format!("no rate limit is named {}; {hint}", quote(name)));
}

fn known_cache(config: &Config, name: &str, path: &Path, problems: &Problems) {
    if config.caches.contains_key(name) {
        return;
    }
    let known: Vec<&str> = config.caches.keys().map(String::as_str).collect();
    let hint = match nearest(name, &known) {
        Some(near) => format!("did you mean {near}?"),
        None => "write the name of one under caches".to_owned(),
    };
    problems.add(path, format!("no cache is named {}; {hint}", quote(name)));
}

fn known_cluster(config: &Config, name: &str, path: &Path, problems: &Problems) {
    // An empty name is the placeholder of a mistake that is reported already.
    if name.is_empty() || config.clusters.contains_key(name) {
        return;
    }
    // Comparing each of many routes with each of many clusters would take minutes.
    let known: Vec<&str> = config.clusters.keys().map(String::as_str).take(50).collect();
    let hint = match nearest(name, &known) {
        Some(near) => format!("did you mean {near}?"),
        None => "write the name of one under clusters".to_owned(),
    };
    problems.add(path, format!("no cluster is named {}; {hint}", quote(name)));
}

fn known_listener(config: &Config, name: &str, path: &Path, problems: &Problems) {
    match config.listeners.iter().find(|listener| listener.name == name) {
        Some(listener) if listener.protocol == Protocol::Http => {}
        Some(_) => {
            problems.add(path, format!("listener {} has no routes; name one that speaks HTTP", quote(name)))
        }
        None => existing_listener(config, name, path, problems),
    }
}

fn existing_listener(config: &Config, name: &str, path: &Path, problems: &Problems) {
    match config.listeners.iter().find(|listener| listener.name == name) {
        Some(_) => {}
        None => {
            let known: Vec<&str> =
                config.listeners.iter().map(|listener| listener.name.as_str()).take(50).collect();
            let hint = match nearest(name, &known) {
                Some(near) => format!("did you mean {near}?"),
                None => "write the name of one under listeners".to_owned(),
            };
            problems.add(path, format!("no listener is named {}; {hint}", quote(name)));
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "one check in a loop: what it compares, and where it reports")]
fn unique<'c>(
    names: &mut HashMap<&'c str, usize>,
    name: &'c str,
    index: usize,
    path: &Path,
    list: &str,
    problems: &Problems,
) {
    if let Some(first) = names.get(name) {
        problems
            .add(path, format!("{} is also the name of {list}[{first}]; write another name", quote(name)));
    } else {
        names.insert(name, index);
    }
}

fn addresses(config: &Config, problems: &Problems) {
    let root = Path::root();
    let listeners = root.key("listeners");
    let demo = config.demo_origin.map(Address::Ip);
    let mut bound: Vec<(&Address, Path)> = Vec::new();
    let listeners = config.listeners.iter().enumerate().map(|(index, listener)| {
        let path = listeners.index(index).key("address");
        (&listener.address, path)
    });
    let admin = config.admin.iter().map(|address| (address, root.key("admin")));
    let demo = demo.iter().map(|address| (address, root.key("demo_origin")));
    for (address, path) in listeners.chain(admin).chain(demo) {
        // Port 0 binds a different port each time.
        if is_placeholder(address) || address.port() == Some(0) {
            continue;
        }
        match bound.iter().find(|(other, _)| *other == address) {
            Some((_, first)) => {
                problems.add(&path, format!("{address} is also the address of {first}; write another"))
            }
            None => bound.push((address, path)),
        }
    }
}

/// Host names are checked when they are bound, by the address they resolve to.
fn admin(config: &Config, problems: &Problems) {
    let Some(Address::Ip(address)) = config.admin else {
        return;
    };
    let is_open = config.admin_token_file.is_none() && !config.admin_metrics_only;
    if is_open && !address.ip().to_canonical().is_loopback() {
        let message = format!(
            "{address} is not a loopback address, so anyone could read it; write admin_token_file, \
             admin_metrics_only: true, or 127.0.0.1:{}",
            address.port()
        );
        problems.add(&Path::root().key("admin"), message);
    }
}

/// Whether it is the placeholder of an address that could not be read.
fn is_placeholder(address: &Address) -> bool {
    matches!(address, Address::Name(name, _) if name.is_empty())
}
