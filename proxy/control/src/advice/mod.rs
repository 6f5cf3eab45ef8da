//! Valid settings that probably do not do what is intended, for `sluice check`. Works on the parsed configuration;
//! opens no files.

mod never;
mod patterns;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use sluice_config::{
    Action, Address, AssistMode, Auth, Conditions, Config, Exceptions, Listener, Protocol, Route,
};
use sluice_core::router::normalised;
use sluice_engine::detour::detours;

/// Maximum number of warnings of one kind.
const MOST: usize = 20;

/// A sentence for each, prefixed with its path.
pub fn warnings(config: &Config) -> Vec<String> {
    let kinds = [
        shadowed(&config.routes),
        patterns::taken_by_patterns(&config.routes),
        never::never(config),
        foreign_variables(&config.routes),
        doubled(&config.routes),
        circles(config),
        readable(config),
        forgetful(config),
        replaceable_keys(&config.routes),
        unused(config),
    ];
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
    let is_prefix = route.path.is_none() && route.path_regex.is_none();
    is_prefix && route.conditions == Conditions::default() && route.not == Exceptions::default()
}

/// The paths that a route is for.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Place<'r> {
    Whole(Vec<u8>),
    Below(Vec<u8>),
    Matching(&'r str),
}

impl<'r> Place<'r> {
    fn of(route: &'r Route) -> Self {
        match (&route.path, &route.path_regex) {
            (Some(path), _) => Self::Whole(normalised(path.as_bytes()).into_owned()),
            (None, Some(pattern)) => Self::Matching(pattern),
            (None, None) => Self::Below(normalised(route.path_prefix.as_bytes()).into_owned()),
        }
    }
}

/// Whether its prefix matches all paths of a place.
fn covers(route: &Route, place: &Place<'_>) -> bool {
    covers_place(&route.path_prefix, place)
}

/// Whether a prefix matches all paths of a place.
fn covers_place(prefix: &str, place: &Place<'_>) -> bool {
    let prefix = normalised(prefix.as_bytes());
    let prefix = prefix.strip_suffix(b"/").unwrap_or(&prefix);
    match place {
        Place::Whole(path) | Place::Below(path) => {
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        }
        Place::Matching(_) => prefix.is_empty(),
    }
}

/// A member of a fleet that remembers nothing.
fn forgetful(config: &Config) -> Vec<String> {
    let forgets = config.store.is_some() && config.services.state_file.is_none();
    let said = "services.state_file: without it, and without a StateDirectory of systemd, a restart serves no deployed \
                services while the store is away";
    forgets.then(|| said.to_owned()).into_iter().collect()
}

/// Texts that have variables as other proxies write them, which are sent as they are.
fn foreign_variables(routes: &[Route]) -> Vec<String> {
    let texts = routes
        .iter()
        .enumerate()
        .flat_map(|(index, route)| route.texts().map(move |(key, text)| (index, key, text)));
    let foreign = texts.filter(|(_, _, text)| has_foreign_variable(text));
    let said = foreign.map(|(index, key, text)| {
        format!(
            "routes[{index}].{key}: {} is sent as it is; write variables in braces, such as {{path}}, {{header:NAME}} or \
             {{group:1}}",
            quote(text)
        )
    });
    said.collect()
}

/// `$1`, `$uri`, `${1}` or `%[path]`.
fn has_foreign_variable(text: &str) -> bool {
    let dollars = text.match_indices('$').any(|(at, _)| {
        let next = text[at + 1..].chars().next();
        next.is_some_and(|next| next.is_ascii_alphanumeric() || next == '{')
    });
    dollars || text.contains("%[")
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
    let rules = routes.iter().enumerate().filter(|(_, route)| route.hosts.is_empty() && route.is_rule());
    rules
        .filter_map(|(index, rule)| Some((index, shadow(rule, &by_host)?)))
        .map(said_of_shadow)
        .take(MOST)
        .collect()
}

/// Rules that no longer apply to some host since routes were added: a sentence for each.
pub(crate) fn newly_shadowed(before: &[Route], now: &[Route]) -> Vec<String> {
    let before = shadowed(before);
    shadowed(now).into_iter().filter(|said| !before.contains(said)).collect()
}

/// A host that a rule does not apply to, and the route that is used there instead.
fn shadow<'r>(
    rule: &Route,
    by_host: &BTreeMap<&'r str, Vec<(usize, &'r Route)>>,
) -> Option<(&'r str, usize, &'r str)> {
    let place = Place::of(rule);
    by_host.iter().find_map(|(host, routes)| {
        if routes.iter().any(|(_, route)| Place::of(route) == place) {
            return None;
        }
        let taker = routes.iter().find(|(_, route)| {
            let forwards = matches!(route.action, Action::Cluster(_));
            forwards && is_unconditional(route) && covers(route, &place)
        });
        taker.map(|(index, route)| (*host, *index, route.path_prefix.as_str()))
    })
}

/// Whether an address is of this host alone.
fn is_local(address: &Address) -> bool {
    match address {
        Address::Ip(address) => address.ip().to_canonical().is_loopback(),
        Address::Name(name, _) => name == "localhost",
        Address::Unix(_) => true,
    }
}

/// Keys that are fetched where others can put their own in their place.
fn replaceable_keys(routes: &[Route]) -> Vec<String> {
    let said = routes.iter().enumerate().filter_map(|(index, route)| {
        let Some(Auth::Jwt(jwt)) = &route.auth else { return None };
        let url = jwt.jwks_url.as_ref().filter(|url| !url.tls && !is_local(&url.address))?;
        Some(format!(
            "routes[{index}].auth.jwt.jwks_url: whoever can change what {url} answers on the way can sign tokens; write https"
        ))
    });
    said.collect()
}

/// Routes that ask for passwords or tokens on a listener where others can read them.
fn readable(config: &Config) -> Vec<String> {
    let is_open = |listener: &&Listener| {
        let is_http = listener.protocol == Protocol::Http && listener.redirect_to_https.is_none();
        is_http && listener.tls.is_none() && !is_local(&listener.address)
    };
    let open: Vec<&str> =
        config.listeners.iter().filter(is_open).map(|listener| listener.name.as_str()).collect();
    let warnings = config.routes.iter().enumerate().filter_map(|(index, route)| {
        let (key, what) = match &route.auth {
            Some(Auth::Basic(_)) => ("basic", "passwords"),
            Some(Auth::Jwt(_)) => ("jwt", "tokens"),
            Some(Auth::Forward(_) | Auth::Certificate(_)) | None => return None,
        };
        let here = &route.conditions.listeners;
        let listener = open.iter().find(|name| here.is_empty() || here.iter().any(|one| one == *name))?;
        Some(format!(
            "routes[{index}].auth.{key}: {what} come in plain text on the listener {}; add tls to it, or \
             redirect_to_https",
            quote(listener)
        ))
    });
    warnings.collect()
}

/// Rate limits that limit nothing, and caches that keep nothing.
fn unused(config: &Config) -> Vec<String> {
    let limits = |name: &String| config.routes.iter().any(|route| route.rate_limits.contains(name));
    let unused = config.rate_limits.keys().filter(|name| !limits(name));
    let limits =
        unused.map(|name| format!("rate_limits.{name}: no route uses it; name it in rate_limits of a route"));
    let keeps = |name: &String| config.routes.iter().any(|route| route.cache.as_ref() == Some(name));
    let unused = config.caches.keys().filter(|name| !keeps(name));
    limits
        .chain(unused.map(|name| format!("caches.{name}: no route uses it; name it in cache of a route")))
        .collect()
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
        let conditions = format!("{:?} {:?}", sorted(&route.conditions), route.not);
        let any = [String::from("*")];
        let hosts = if route.hosts.is_empty() { &any[..] } else { &route.hosts[..] };
        let before: Vec<usize> = hosts
            .iter()
            .filter_map(|host| {
                let key = (host.clone(), Place::of(route), conditions.clone());
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

/// The same conditions, in an order that does not depend on the file.
fn sorted(conditions: &Conditions) -> Conditions {
    let mut sorted = conditions.clone();
    sorted.listeners.sort();
    sorted.methods.sort();
    sorted.headers.sort_by(|a, b| (&a.name, &a.value).cmp(&(&b.name, &b.value)));
    sorted.query.sort_by(|a, b| (&a.name, &a.value).cmp(&(&b.name, &b.value)));
    sorted.client.sort();
    sorted
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
    fn rules_for_one_path_are_compared_with_what_takes_it() {
        let rule = "- {path: /admin, respond: {status: 403}}\n- {path_regex: '[.]php$', respond: {status: 404}, name: php}\n";
        let all = "- {cluster: app}\n";
        let own = "- {hosts: [a.example], cluster: app, name: own}\n";
        let found = said(&[rule, all, own].concat());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].starts_with("routes[1]: it has no hosts"), "{found:?}");
        let but = "- {hosts: [a.example], not: {path: [/admin]}, cluster: app, name: own}\n";
        assert_eq!(said(&[rule, all, but].concat()), Vec::<String>::new());
        let twice = "- {path: /a, cluster: app}\n- {path: /a/., cluster: app, name: b}\n- {path: /%61, query: [{name: q}], cluster: app, name: c}\n- {path: /%61, cluster: app, name: d}\n";
        assert_eq!(said(twice), ["routes[3]: it never matches; routes[0] has the same conditions"]);
    }

    #[test]
    fn keys_that_others_can_replace_are_reported() {
        for (url, is_said) in [
            ("http://id.example/keys", true),
            ("https://id.example/keys", false),
            ("http://127.0.0.1:8080/keys", false),
        ] {
            let found =
                said(&format!("- {{cluster: app, auth: {{jwt: {{jwks_url: '{url}', audience: [a]}}}}}}\n"));
            assert_eq!(
                found.iter().any(|said| said.contains("can sign tokens")),
                is_said,
                "{url}: {found:?}"
            );
        }
    }

    #[test]
    fn rules_that_never_match_are_reported() {
        for (route, wanted) in [
            (
                "{cluster: app, methods: [GET], not: {methods: [GET, POST]}}",
                "it never matches: not.methods has all",
            ),
            (
                "{cluster: app, path: /a/b, not: {path_prefix: [/a]}}",
                "it never matches: not.path_prefix contains all",
            ),
            ("{cluster: app, not: {listeners: [main]}}", "it never matches: not.listeners has all"),
            (
                "{cluster: app, client: [10.1.0.0/16], not: {client: [10.0.0.0/8]}}",
                "it never matches: not.client contains",
            ),
            (
                "{cluster: app, headers: [{name: a}], not: {headers: [{name: a}]}}",
                "it never matches: not.headers has",
            ),
            (
                "{cluster: app, query: [{name: a}], not: {query: [{name: a}]}}",
                "it never matches: not.query has",
            ),
            (
                "{cluster: app, client: [10.0.0.1], access: {allow: [10.1.0.0/16]}}",
                "access.allow has none of its clients",
            ),
            (
                "{cluster: app, access: {allow: [10.0.0.1], deny: [10.0.0.0/8]}}",
                "access: deny contains all of allow",
            ),
        ] {
            let found = said(&format!("- {route}\n"));
            assert!(found.len() == 1 && found[0].contains(wanted), "{route}: {found:?}");
        }
        for fine in [
            "{cluster: app, methods: [GET, POST], not: {methods: [GET]}}",
            "{cluster: app, not: {path_prefix: [/a]}}",
            "{cluster: app, client: [10.0.0.0/8], not: {client: [10.1.0.0/16]}}",
            "{cluster: app, access: {allow: [10.0.0.1], allow_files: [/x], deny: [10.0.0.0/8]}}",
        ] {
            assert_eq!(said(&format!("- {fine}\n")), Vec::<String>::new(), "{fine}");
        }
    }

    #[test]
    fn expressions_that_take_requests_from_a_rule_are_reported() {
        let rule = "- {name: a, path_prefix: /api/admin, cluster: app, access: {allow: [10.0.0.0/8]}}\n";
        for (taker, is_said) in [
            ("{path_regex: '^/api/(.*)', cluster: app}", true),
            ("{path_regex: '[.]css$', cluster: app}", true),
            ("{path_regex: '^/api/(.*)', cluster: app, access: {allow: [10.0.0.0/8]}}", false),
            ("{path_regex: '^/api/(.*)', cluster: app, not: {path_prefix: [/api/admin]}}", false),
            ("{path_regex: '^/api/(.*)', respond: {}}", false),
            ("{path_regex: '^/shop/', cluster: app}", false),
            ("{path_regex: '^/api/(.*)', cluster: app, hosts: [a.example]}", false),
        ] {
            let found = said(&format!("{rule}- {taker}\n- {{cluster: app, name: rest}}\n"));
            let about = found.iter().any(|said| said.contains("because an expression comes before a prefix"));
            assert_eq!(about, is_said, "{taker}: {found:?}");
        }
    }

    #[test]
    fn variables_of_other_proxies_are_reported() {
        for (text, is_foreign) in [
            ("/new/$1", true),
            ("https://$host/x", true),
            ("/%[path]", true),
            ("/a$", false),
            ("/a?price=$,$", false),
            ("/{path}", false),
        ] {
            let found = said(&format!("- {{path: /a, redirect: {{location: '{text}'}}}}\n"));
            assert_eq!(
                found.iter().any(|said| said.contains("is sent as it is")),
                is_foreign,
                "{text}: {found:?}"
            );
        }
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
    fn rules_that_a_service_takes_requests_from_are_reported() {
        let routes = |more: &str| {
            let text = format!(
                "listeners: [{{address: '0.0.0.0:80'}}]\nclusters: {{app: {{endpoints: ['127.0.0.1:3000']}}}}\n\
                 rate_limits: {{a: {{rate: 1/s}}}}\nroutes: [{{cluster: app, path_prefix: /in, rate_limits: [a]}}{more}]"
            );
            sluice_config::parse("test.yaml", &text, &[]).unwrap().routes
        };
        let (file, with_service) = (routes(""), routes(", {cluster: app, hosts: [app.test]}"));
        let said = newly_shadowed(&file, &with_service);
        assert!(said.len() == 1 && said[0].contains("does not apply to \"app.test\""), "{said:?}");
        assert_eq!(newly_shadowed(&with_service, &with_service), [""; 0], "said once");
    }

    #[test]
    fn passwords_in_plain_text_and_unused_limits_are_reported() {
        let check = |listeners: &str, route: &str| {
            let text = format!(
                "listeners: [{listeners}]\nclusters: {{app: {{endpoints: ['127.0.0.1:3000']}}}}\nroutes: [{{cluster: app, \
                 {route}}}]\nrate_limits: {{a: {{rate: 1/s}}, b: {{rate: 1/s}}}}"
            );
            warnings(&sluice_config::parse("test.yaml", &text, &[]).unwrap())
        };
        let open = "{address: '0.0.0.0:80', name: main}";
        let asks = "auth: {basic: {file: /users}}, rate_limits: [a, b]";
        assert_eq!(
            check(open, asks),
            [
                "routes[0].auth.basic: passwords come in plain text on the listener \"main\"; add tls to it, or \
              redirect_to_https"
            ]
        );
        let local = "{address: '127.0.0.1:80', name: local}";
        assert_eq!(check(local, asks), [""; 0]);
        assert_eq!(check("{address: '0.0.0.0:80', redirect_to_https: on}", asks), [""; 0]);
        let there = &format!("{asks}, listeners: [local]");
        assert_eq!(check(&format!("{open}, {local}"), there), [""; 0]);
        assert_eq!(
            check(open, "rate_limits: [b]"),
            ["rate_limits.a: no route uses it; name it in rate_limits of a route"]
        );
    }

    #[test]
    fn loops_are_reported() {
        let text = "listeners: [{address: '0.0.0.0:8080', name: main}]\nclusters: {app: {endpoints: ['127.0.0.1:8080']}}\n\
            routes: [{cluster: app}]";
        let said = warnings(&sluice_config::parse("test.yaml", text, &[]).unwrap());
        assert_eq!(
            said,
            [
                "clusters.app.endpoints[0]: 127.0.0.1:8080 is the address of listener \"main\": requests would loop"
            ]
        );
    }
}
