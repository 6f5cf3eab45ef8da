//! Rules that can never match, or that let nobody through.

use std::collections::BTreeSet;

use ipnet::IpNet;
use sluice_config::{Access, Config, Protocol, Route};

use super::{Place, covers_place};

/// Routes whose conditions exclude each other, and `access` that lets nobody through.
pub(super) fn never(config: &Config) -> Vec<String> {
    let routes = config.routes.iter().enumerate().flat_map(|(index, route)| {
        let match_nothing = contradiction(route, config);
        let said = match_nothing.map(|why| format!("routes[{index}]: it never matches: {why}"));
        let closed = route.access.as_ref().filter(|access| lets_nobody_through(access));
        let closed = closed.map(|_| {
            format!("routes[{index}].access: deny contains all of allow, so nobody passes; make deny smaller")
        });
        said.into_iter().chain(closed)
    });
    let rules = config.access.iter().enumerate().filter(|(_, rule)| lets_nobody_through(&rule.access));
    let rules = rules.map(|(index, _)| {
        format!("access[{index}]: deny contains all of allow, so nobody passes; make deny smaller")
    });
    routes.chain(rules).collect()
}

fn contradiction(route: &Route, config: &Config) -> Option<&'static str> {
    let (wanted, not) = (&route.conditions, &route.not);
    let http = config.listeners.iter().filter(|listener| listener.protocol == Protocol::Http);
    let listeners: BTreeSet<&str> = match wanted.listeners.is_empty() {
        true => http.map(|listener| listener.name.as_str()).collect(),
        false => wanted.listeners.iter().map(String::as_str).collect(),
    };
    let is_left_out = |name: &&str| not.conditions.listeners.iter().any(|other| other == *name);
    let place = Place::of(route);
    let one = |networks: &[IpNet]| IpNet::aggregate(&networks.to_vec());
    let is_within = |inner: &[IpNet], outer: &[IpNet]| {
        let outer = one(outer);
        !inner.is_empty() && inner.iter().all(|inner| outer.iter().any(|outer| outer.contains(inner)))
    };
    if !listeners.is_empty() && listeners.iter().all(is_left_out) {
        Some("not.listeners has all its listeners")
    } else if !wanted.methods.is_empty()
        && wanted.methods.iter().all(|method| not.conditions.methods.contains(method))
    {
        Some("not.methods has all its methods")
    } else if is_within(&wanted.client, &not.conditions.client) {
        Some("not.client contains all its clients")
    } else if not.path_prefix.iter().any(|prefix| covers_place(prefix, &place)) {
        Some("not.path_prefix contains all its paths")
    } else if wanted.headers.iter().any(|header| not.conditions.headers.contains(header)) {
        Some("not.headers has a field that it needs")
    } else if wanted.query.iter().any(|parameter| not.conditions.query.contains(parameter)) {
        Some("not.query has a parameter that it needs")
    } else {
        match &route.access {
            Some(access)
                if access.allow_files.is_empty() && !access.allow.is_empty() && !wanted.client.is_empty() =>
            {
                let meets = |client: &IpNet| access.allow.iter().any(|allowed| overlap(client, allowed));
                (!wanted.client.iter().any(meets))
                    .then_some("access.allow has none of its clients, so all get 403")
            }
            _ => None,
        }
    }
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

fn lets_nobody_through(access: &Access) -> bool {
    let denied = IpNet::aggregate(&access.deny);
    let is_denied = |network: &IpNet| denied.iter().any(|denied| denied.contains(network));
    !access.allow.is_empty() && access.allow_files.is_empty() && access.allow.iter().all(is_denied)
}
