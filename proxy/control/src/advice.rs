//! Valid settings that probably do not do what is intended, for `sluice check`. Works on the parsed configuration;
//! opens no files.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use sluice_config::{Action, Address, AssistMode, Config, HeaderEdits, Route};
use sluice_core::router::normalised;
use sluice_engine::detour::detours;

/// Maximum number of warnings of one kind.
const MOST: usize = 20;

/// A sentence for each, prefixed with its path.
pub fn warnings(config: &Config) -> Vec<String> {
    let kinds =
        [shadowed(&config.routes), doubled(&config.routes), circles(config), placeholders(&config.routes)];
    kinds.into_iter().flat_map(|kind| kind.into_iter().take(MOST)).collect()
}

/// What a configuration costs: a sentence for each route whose responses sluice copies although the kernel could send
/// them to their clients directly.
pub fn costs(config: &Config) -> Vec<String> {
    if config.kernel.bypass == AssistMode::Off || config.kernel.direct_return == AssistMode::Off {
        return Vec::new();
    }
    let routes = config.routes.iter().enumerate();
    let costs = routes.filter_map(|(index, route)| {
        let reasons: Vec<_> =
            detours(route, config).into_iter().map(|(key, why)| format!("{key} {why}")).collect();
        let reasons = (!reasons.is_empty()).then(|| reasons.join(", "))?;
        Some(format!("routes[{index}]: its responses are not returned directly: {reasons}"))
    });
    costs.take(MOST).collect()
}

/// Whether it matches every request of its hosts and prefix.
fn is_unconditional(route: &Route) -> bool {
    route.listeners.is_empty() && route.methods.is_empty() && route.headers.is_empty()
}

/// Whether it is a rule that keeps requests from applications.
fn is_rule(route: &Route) -> bool {
    matches!(route.action, Action::Respond { .. } | Action::Redirect { .. })
}

/// Whether its prefix matches a normalised path.
fn covers(route: &Route, path: &[u8]) -> bool {
    let prefix = normalised(route.path_prefix.as_bytes());
    let prefix = prefix.strip_suffix(b"/").unwrap_or(&prefix);
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

fn quote(text: &str) -> String {
    format!("{text:?}")
}

/// Rules without hosts, which do not apply to hosts that have their own routes.
fn shadowed(routes: &[Route]) -> Vec<String> {
    let mut by_host: BTreeMap<&str, Vec<(usize, &Route)>> = BTreeMap::new();
    for (index, route) in routes.iter().enumerate() {
        for host in &route.hosts {
            by_host.entry(host).or_default().push((index, route));
        }
    }
    let rules = routes.iter().enumerate().filter(|(_, route)| route.hosts.is_empty() && is_rule(route));
    rules
        .filter_map(|(index, rule)| Some((index, shadow(rule, &by_host)?)))
        .map(said_of_shadow)
        .take(MOST)
        .collect()
}

/// A host that a rule does not apply to, and the route that is used there instead.
fn shadow<'r>(
    rule: &Route,
    by_host: &BTreeMap<&'r str, Vec<(usize, &'r Route)>>,
) -> Option<(&'r str, usize, &'r str)> {
    let path = normalised(rule.path_prefix.as_bytes());
    by_host.iter().find_map(|(host, routes)| {
        if routes.iter().any(|(_, route)| normalised(route.path_prefix.as_bytes()) == path) {
            return None;
        }
        let taker = routes.iter().find(|(_, route)| is_unconditional(route) && covers(route, &path));
        taker.map(|(index, route)| (*host, *index, route.path_prefix.as_str()))
    })
}

fn said_of_shadow((index, (host, taker, prefix)): (usize, (&str, usize, &str))) -> String {
    format!(
        "routes[{index}]: it has no hosts, so it does not apply to {host:?}, where routes[{taker}] matches \
         {prefix:?}; repeat it for that host"
    )
}

/// Routes after another one with the same conditions.
fn doubled(routes: &[Route]) -> Vec<String> {
    let mut first = HashMap::new();
    let mut said = Vec::new();
    for (index, route) in routes.iter().enumerate() {
        let (mut listeners, mut methods) = (route.listeners.clone(), route.methods.clone());
        listeners.sort();
        methods.sort();
        let mut headers: Vec<_> = route.headers.iter().map(|header| (&header.name, &header.value)).collect();
        headers.sort();
        let prefix = normalised(route.path_prefix.as_bytes()).into_owned();
        let any = [String::from("*")];
        let hosts = if route.hosts.is_empty() { &any[..] } else { &route.hosts[..] };
        let before: Vec<usize> = hosts
            .iter()
            .filter_map(|host| {
                let key = (host.clone(), prefix.clone(), listeners.clone(), methods.clone(), headers.clone());
                let known = *first.entry(key).or_insert(index);
                (known != index).then_some(known)
            })
            .collect();
        if before.len() == hosts.len() {
            said.push(format!(
                "routes[{index}]: it never matches; routes[{}] has the same conditions",
                before[0]
            ));
        }
    }
    said
}

/// Endpoints that are listeners of this file.
fn circles(config: &Config) -> Vec<String> {
    let mut said = Vec::new();
    for (name, cluster) in &config.clusters {
        for (index, endpoint) in cluster.endpoints.iter().enumerate() {
            let leads_to =
                config.listeners.iter().find(|listener| is_same(&listener.address, &endpoint.address));
            if let Some(listener) = leads_to {
                said.push(format!(
                    "clusters.{name}.endpoints[{index}]: {} is the address of listener {}: requests would \
                     loop",
                    endpoint.address,
                    quote(&listener.name)
                ));
            }
        }
    }
    said
}

/// Whether connections to `endpoint` reach `listener`.
fn is_same(listener: &Address, endpoint: &Address) -> bool {
    let ip = |address: &Address| match address {
        Address::Ip(ip) => Some((ip.ip().to_canonical(), ip.port())),
        Address::Name(name, port) if name == "localhost" => Some((IpAddr::from([127, 0, 0, 1]), *port)),
        _ => None,
    };
    match (ip(listener), ip(endpoint)) {
        (Some((at, port)), Some((to, other))) => {
            port != 0 && port == other && (at == to || (at.is_unspecified() && to.is_loopback()))
        }
        _ => listener == endpoint,
    }
}

/// Values that look like placeholders.
fn placeholders(routes: &[Route]) -> Vec<String> {
    let mut said = Vec::new();
    let of = |edits: &HeaderEdits| -> Vec<(String, String)> {
        edits.set.iter().chain(&edits.add).cloned().collect()
    };
    for (index, route) in routes.iter().enumerate() {
        for (key, edits) in
            [("request_headers", &route.request_headers), ("response_headers", &route.response_headers)]
        {
            for (name, value) in of(edits) {
                let inside = value.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
                let is_word = |word: &str| {
                    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                };
                if inside.is_some_and(|(word, _)| is_word(word)) {
                    said.push(format!(
                        "routes[{index}].{key}: {name} is sent literally, {}; placeholders are not \
                         replaced here",
                        quote(&value)
                    ));
                }
            }
        }
    }
    said
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn said(routes: &str) -> Vec<String> {
        let text = format!(
            "listeners: [{{address: '127.0.0.1:8080', name: main}}]\nclusters: {{app: {{endpoints: ['127.0.0.1:3000']}}}}\nroutes:\n{routes}"
        );
        warnings(&sluice_config::parse("test.yaml", &text, &[]).unwrap())
    }

    #[test]
    fn rules_without_hosts_do_not_apply_to_hosts_with_own_routes() {
        let rule = "- {path_prefix: /admin, respond: {status: 403}}\n";
        let all = "- {cluster: app}\n";
        let own = "- {hosts: [a.example], cluster: app, name: own}\n";
        assert_eq!(said(&[rule, all].concat()), Vec::<String>::new());
        assert_eq!(
            said(&[rule, all, own].concat()),
            ["routes[0]: it has no hosts, so it does not apply to \"a.example\", where routes[2] \
                 matches \"/\"; repeat it for that host"]
        );
        let repeated = "- {hosts: [a.example], path_prefix: /admin, respond: {status: 403}}\n";
        assert_eq!(said(&[rule, all, own, repeated].concat()), Vec::<String>::new());
        let beside = "- {hosts: [a.example], path_prefix: /api, cluster: app, name: own}\n";
        assert_eq!(said(&[rule, all, beside].concat()), Vec::<String>::new());
    }

    #[test]
    fn unreachable_routes_are_reported() {
        let routes = "- {path_prefix: /%61, cluster: app}\n- {path_prefix: /a, cluster: app, name: b}\n- {path_prefix: /a, methods: [GET], cluster: app, name: c}\n";
        assert_eq!(said(routes), ["routes[1]: it never matches; routes[0] has the same conditions"]);
    }

    #[test]
    fn keys_that_keep_responses_off_direct_return_are_named() {
        let costs_of = |rest: &str| {
            let text = format!(
                "listeners: [{{address: '127.0.0.1:8080'}}]\nclusters: {{app: {{endpoints: ['127.0.0.1:3000']}}}}\n{rest}"
            );
            costs(&sluice_config::parse("test.yaml", &text, &[]).unwrap())
        };
        let none = Vec::<String>::new();
        assert_eq!(costs_of("routes: [{cluster: app}, {path_prefix: /a, redirect: {location: /b}}]"), none);
        let edited = "routes: [{cluster: app, response_headers: {set: {x-a: b}}, buffer_responses: on}]\n";
        assert_eq!(
            costs_of(edited),
            ["routes[0]: its responses are not returned directly: buffer_responses buffers responses, \
                 response_headers changes their heads"]
        );
        assert_eq!(costs_of(&format!("{edited}kernel: {{direct_return: off}}")), none);
        assert_eq!(
            costs_of("routes: [{cluster: app}]\nvia: true"),
            ["routes[0]: its responses are not returned directly: via adds a field"]
        );
    }

    #[test]
    fn loops_and_placeholders_are_reported() {
        let text = "listeners: [{address: '0.0.0.0:8080', name: main}]\nclusters: {app: {endpoints: ['127.0.0.1:8080']}}\n\
            routes: [{cluster: app, request_headers: {set: {x-ip: '{client}', x-json: '{\"a\":1}'}}}]";
        let said = warnings(&sluice_config::parse("test.yaml", text, &[]).unwrap());
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0]
                .starts_with("clusters.app.endpoints[0]: 127.0.0.1:8080 is the address of listener \"main\""),
            "{said:?}"
        );
        assert!(said[1].starts_with("routes[0].request_headers: x-ip is sent literally"), "{said:?}");
    }
}
