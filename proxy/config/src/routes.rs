//! Reads `routes`: match rules and actions.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

use serde_yaml::Value;

use super::access::ACCESS;
use super::auth::AUTH;
use super::codec::{Codec, Flag, List, Optional, Own, Table, checked, keys, lowered, map, number, word};
use super::condition::NOT;
use super::defaults::{BODY_IDLE_TIMEOUT_MS, RESPONSE_TIMEOUT_MS};
use super::general::{ERROR_PAGES, REPLACED};
use super::out::{Out, list};
use super::path::Path;
use super::rate_limit::OF_ROUTE_MAX;
use super::reader::{Fields, Item};
use super::shape::{Key, Shape};
use super::{
    Action, Buffering, Cluster, Conditions, Config, Exceptions, HeaderEdits, Protocol, Retry,
    RewriteTemplate, Route, RouteDirect, Switch, Template, condition, group_of, location, text,
};

/// Maximum number of routes.
const ROUTES_MAX: usize = 10_000;
/// Maximum number of hosts or edits of one route.
const ITEMS_MAX: usize = 1000;
/// Redirect statuses that clients follow.
const REDIRECTS: &[u64] = &[301, 302, 303, 307, 308];
/// Statuses of a fixed response.
const RESPOND: RangeInclusive<u64> = 200..=599;

keys! { Route {
    hosts: Vec::new(), List(ITEMS_MAX, lowered(text::host_pattern));
    path_prefix: "/".to_owned(), checked(|path| text::url_path(path, false));
    path: None, Optional(checked(|path| text::url_path(path, false)));
    path_regex: None, Optional(checked(condition::checked_pattern));
    not: Exceptions::default(), NOT;
    access: None, Optional(ACCESS);
    auth: None, Optional(AUTH);
    rate_limits: Vec::new(), List(OF_ROUTE_MAX, checked(text::name));
    strip_prefix: false, Flag;
    rewrite: None, Optional(checked(|_| Ok(())));
    add_prefix: None, Optional(checked(added_prefix));
    host_rewrite: None, Optional(checked(text::host_value));
    files: None, Optional(map());
    sendfile: None, Optional(map());
    compress: None, Optional(map());
    cache: None, Optional(checked(text::name));
    cors: None, Optional(map());
    error_pages: BTreeMap::new(), ERROR_PAGES;
    error_pages_for: None, Optional(REPLACED);
    request_headers: HeaderEdits::default(), REQUEST_EDITS;
    response_headers: HeaderEdits::default(), RESPONSE_EDITS;
    direct_return: RouteDirect::Auto, word();
    response_timeout_ms: None, Optional(number(RESPONSE_TIMEOUT_MS));
    body_idle_timeout_ms: None, Optional(number(BODY_IDLE_TIMEOUT_MS));
} rest {
    name: String::new(),
    action: Action::Cluster(String::new()),
    conditions: Conditions::default(),
    buffering: Buffering::default(),
    retry: None,
}}

impl Route {
    /// A route that matches any request, with only an action.
    pub fn new(name: &str, action: Action) -> Self {
        Self { name: name.to_owned(), action, ..Self::default() }
    }
}

/// Reads every route. Routes with mistakes are kept, so that indexes match the file.
///
/// `None` if the file has no `routes`.
pub(super) fn read(root: &mut Fields<'_>, clusters: &BTreeMap<String, Cluster>) -> Option<Vec<Route>> {
    let item = root.get("routes")?;
    let items = item.list(ROUTES_MAX);
    let mut routes: Vec<Route> = items.iter().map(|item| route(item, clusters)).collect();
    name_the_nameless(&mut routes);
    Some(routes)
}

/// Names a route without a name after its cluster, or after its position if that name is taken.
fn name_the_nameless(routes: &mut [Route]) {
    let mut taken: HashSet<String> = routes.iter().map(|route| route.name.clone()).collect();
    for (index, route) in routes.iter_mut().enumerate().filter(|(_, route)| route.name.is_empty()) {
        route.name = match &route.action {
            Action::Cluster(cluster) if !cluster.is_empty() && !taken.contains(cluster) => cluster.clone(),
            _ => format!("route[{index}]"),
        };
        taken.insert(route.name.clone());
    }
}

/// One route; its name is empty if none is given.
fn route(item: &Item<'_>, clusters: &BTreeMap<String, Cluster>) -> Route {
    let mut fields = item.fields();
    let name = fields.get("name").and_then(|item| item.checked(text::name));
    let action = action(&mut fields);
    let mut route = Route::new(&name.unwrap_or_default(), action);
    route.read_keys(&mut fields);
    route.conditions.read_keys(&mut fields);
    fields.refuse_null("access", "allow, deny or both");
    fields.refuse_null("files", "root and what else they have");
    fields.refuse_null("sendfile", "roots, accel or both");
    fields.refuse_null("auth", "basic, forward, jwt or certificate");
    fields.refuse_null("rate_limits", "names of limits");
    fields.refuse_null("client", "networks such as 10.0.0.0/8");
    fields.refuse_null("query", "names of parameters");
    fields.refuse_null("not", "what the route leaves out");
    one_path(&fields, &route);
    if route.strip_prefix && route.path_prefix == "/" {
        fields
            .problems
            .add(&fields.path.key("strip_prefix"), "path_prefix is missing; write the prefix to strip");
    }
    check_rewrite(&fields, &route);
    check_groups(&fields, &route);
    route.buffering.read_keys(&mut fields);
    if let Some(item) = fields.get("retry") {
        let mut retry = match &route.action {
            Action::Cluster(name) => clusters.get(name).map(|cluster| cluster.retry).unwrap_or_default(),
            _ => Default::default(),
        };
        map().read_into(&mut retry, &item);
        route.retry = Some(retry);
    }
    if route.compress.is_some() && route.buffering.buffer_responses == Switch::On {
        let message = "responses that are buffered are not encoded; remove this or buffer_responses";
        fields.problems.add(&fields.path.key("compress"), message);
    }
    refuse_idle_keys(&fields, &route);
    fields.finish();
    route
}

fn added_prefix(text: &str) -> text::Check {
    text::url_path(text, false)?;
    if text.ends_with('/') {
        return Err(format!("{} ends with /; write it without", super::problem::quote(text)).into());
    }
    text::without_dots(text)?;
    Ok(())
}

fn check_rewrite(fields: &Fields<'_>, route: &Route) {
    let Some(template) = &route.rewrite else {
        return;
    };
    let path = fields.path.key("rewrite");
    if let Err(mistake) = RewriteTemplate::read(template, route.path_regex.as_deref()) {
        fields.problems.add(&path, mistake.to_string());
    }
    if route.strip_prefix || route.add_prefix.is_some() {
        fields.problems.add(&path, "the template is the whole path; remove strip_prefix and add_prefix");
    }
}

/// Reports variables that name a group which `path_regex` does not have.
fn check_groups(fields: &Fields<'_>, route: &Route) {
    let pattern = route.path_regex.as_deref().map(super::pattern);
    for (key, text) in route.texts() {
        let Ok(template) = Template::read(text) else { continue };
        for group in template.groups() {
            let what = match &pattern {
                // A mistake in the expression was reported.
                Some(Err(_)) => continue,
                Some(Ok(pattern)) if group_of(pattern, group).is_some() => continue,
                Some(Ok(pattern)) => format!("it has {}", pattern.captures_len() - 1),
                None => "the route has no path_regex".to_owned(),
            };
            let message = format!("{{group:{group}}} is not a group of path_regex: {what}");
            let path = key.split('.').fold(fields.path.clone(), |path, key| path.key(key));
            fields.problems.add(&path, message);
        }
    }
}

/// Reports more than one kind of path.
fn one_path(fields: &Fields<'_>, route: &Route) {
    let kinds = [
        ("path", route.path.is_some()),
        ("path_regex", route.path_regex.is_some()),
        ("path_prefix", route.path_prefix != "/"),
    ];
    let given: Vec<&str> = kinds.iter().filter(|(_, given)| *given).map(|(key, _)| *key).collect();
    if given.len() > 1 {
        fields.mistake(format!("{} exclude each other; keep one", given.join(" and ")));
    }
}

/// Every route, with all defaults.
pub(super) fn write(routes: &[Route]) -> Value {
    list(routes, |route| {
        let mut out = Out::default();
        out.put("name", route.name.as_str());
        write_action(&mut out, &route.action);
        route.conditions.write_keys(&mut out);
        route.write_keys(&mut out);
        route.buffering.write_keys(&mut out);
        out.put_some("retry", route.retry.as_ref().map(Table::written));
        out.done()
    })
}

/// The shape of `routes`.
pub(super) fn shape() -> Shape {
    let redirect = vec![
        Key::optional("status", Shape::OneOf(REDIRECTS.iter().map(|status| (*status).into()).collect())),
        Key::required("location", Shape::TEXT),
    ];
    let respond = vec![
        Key::optional("status", Shape::Integer(*RESPOND.start(), *RESPOND.end())),
        Key::optional("body", Shape::Text { least: 0 }),
        Key::optional("template", Shape::Text { least: 0 }),
        Key::optional("content_type", Shape::TEXT),
    ];
    let mut keys = vec![
        Key::optional("name", Shape::TEXT),
        Key::optional("cluster", Shape::TEXT),
        Key::optional("redirect", Shape::Map(redirect)),
        Key::optional("respond", Shape::Map(respond)),
    ];
    keys.extend(Conditions::keys());
    keys.extend(Route::keys());
    keys.extend(Buffering::keys());
    keys.push(Key::optional("retry", map::<Retry>().shape()));
    Shape::list(Shape::Map(keys), ROUTES_MAX)
}

fn field_value(item: &Item<'_>) -> Option<String> {
    let value = item.any_text()?;
    text::field_value(value).map_err(|message| item.mistake(message)).ok()?;
    Some(value.to_owned())
}

/// The one action of a route. Reports a missing action and returns a placeholder.
fn action(fields: &mut Fields<'_>) -> Action {
    let cluster = fields.get("cluster");
    let redirect = fields.get("redirect");
    let respond = fields.get("respond");
    let files = fields.get("files");
    let given: Vec<&str> = [("cluster", &cluster), ("redirect", &redirect), ("respond", &respond)]
        .iter()
        .filter(|(_, item)| item.is_some())
        .map(|(key, _)| *key)
        .collect();
    match given.as_slice() {
        [] if files.is_some() => return Action::Files,
        [] if !fields.is_broken() => fields.mistake("no action; write cluster, redirect, respond or files"),
        [] | ["cluster"] => {}
        [one] if files.is_some() => fields.mistake(format!("files and {one} exclude each other; keep one")),
        [_] => {}
        _ => fields.mistake(format!("{} exclude each other; keep one", given.join(" and "))),
    }
    if let Some(item) = redirect {
        return redirect_action(&item);
    }
    if let Some(item) = respond {
        return respond_action(&item);
    }
    Action::Cluster(cluster.and_then(|item| item.text()).unwrap_or_default().to_owned())
}

fn redirect_action(item: &Item<'_>) -> Action {
    let mut fields = item.fields();
    let mut status = 302;
    if let Some(item) = fields.get("status") {
        match item.value.as_u64() {
            Some(given) if REDIRECTS.contains(&given) => status = given as u16,
            _ => item.wrong_kind("301, 302, 303, 307 or 308"),
        }
    }
    let location = fields.require("location", "where to, such as https://{host}{path}{query}");
    let location = location.and_then(|item| item.checked(location::location)).unwrap_or_default();
    fields.finish();
    Action::Redirect { status, location }
}

fn respond_action(item: &Item<'_>) -> Action {
    let mut fields = item.fields();
    let status = fields.number("status", RESPOND).map_or(200, |status| status as u16);
    let (fixed, template) = (fields.get("body"), fields.get("template"));
    if fixed.is_some() && template.is_some() {
        fields.mistake("body and template exclude each other; keep one");
    }
    let is_template = template.is_some();
    let text = template.or(fixed).and_then(|item| {
        let text = item.any_text()?;
        let read = if is_template { Template::read(text).map(drop) } else { Ok(()) };
        read.map_err(|mistake| item.mistake(mistake)).ok().map(|()| text)
    });
    let body = text.unwrap_or_default().to_owned();
    // RFC 9110 6.4.1: these statuses never have content.
    if matches!(status, 204 | 304) && !body.is_empty() {
        fields.mistake(format!("a {status} response has no body; remove body"));
    }
    let content_type = fields.get("content_type").and_then(|item| item.checked(text::field_value));
    let is_code = content_type.as_ref().is_some_and(|kind| {
        let kind = kind.to_ascii_lowercase();
        kind.contains("javascript") || kind.contains("ecmascript") || kind.contains("css")
    });
    if is_template && is_code {
        fields.mistake("values of clients cannot be escaped in code; write body, or a template of JSON");
    }
    fields.finish();
    let content_type = content_type.unwrap_or_else(|| "text/plain; charset=utf-8".to_owned());
    Action::Respond { status, body, is_template, content_type }
}

fn write_action(out: &mut Out, action: &Action) {
    let mut inner = Out::default();
    match action {
        Action::Cluster(name) => out.put("cluster", name.as_str()),
        // By the key of the files.
        Action::Files => {}
        Action::Redirect { status, location } => {
            inner.put("status", *status);
            inner.put("location", location.as_str());
            out.put("redirect", inner.done());
        }
        Action::Respond { status, body, is_template, content_type } => {
            inner.put("status", *status);
            inner.put(if *is_template { "template" } else { "body" }, body.as_str());
            inner.put("content_type", content_type.as_str());
            out.put("respond", inner.done());
        }
    }
}

const REQUEST_EDITS: Own<HeaderEdits> =
    Own { read: |item| Some(edits(item, true)), write: write_edits, shape: edits_shape };

const RESPONSE_EDITS: Own<HeaderEdits> =
    Own { read: |item| Some(edits(item, false)), write: write_edits, shape: edits_shape };

/// `request` selects the rules for request fields, of which fewer may be changed.
fn edits(item: &Item<'_>, request: bool) -> HeaderEdits {
    let mut edits = HeaderEdits::default();
    let mut fields = item.fields();
    if let Some(item) = fields.get("remove") {
        let names = item.list(ITEMS_MAX);
        let names =
            names.iter().filter_map(|item| item.checked(|name| text::edited_field_name(name, request)));
        edits.remove = names.map(|name| name.to_ascii_lowercase()).collect();
    }
    edits.set = fields.get("set").map(|item| named_values(&item, request)).unwrap_or_default();
    edits.add = fields.get("add").map(|item| named_values(&item, request)).unwrap_or_default();
    fields.finish();
    edits
}

fn write_edits(edits: &HeaderEdits) -> Value {
    let pairs = |pairs: &[(String, String)]| {
        let mut out = Out::default();
        pairs.iter().for_each(|(name, value)| out.put(name, value.as_str()));
        out.done()
    };
    let mut out = Out::default();
    out.put("remove", super::out::texts(&edits.remove));
    out.put("set", pairs(&edits.set));
    out.put("add", pairs(&edits.add));
    out.done()
}

fn edits_shape() -> Shape {
    let values = || Shape::entries(Shape::Text { least: 0 }, ITEMS_MAX);
    Shape::Map(vec![
        Key::optional("remove", Shape::list(Shape::TEXT, ITEMS_MAX)),
        Key::optional("set", values()),
        Key::optional("add", values()),
    ])
}

fn named_values(item: &Item<'_>, request: bool) -> Vec<(String, String)> {
    let mut values = Vec::new();
    for (name, item) in item.entries(ITEMS_MAX) {
        if let Err(message) = text::edited_field_name(&name, request) {
            item.mistake(message);
        } else if let Some(value) = field_value(&item) {
            match Template::read(&value) {
                Ok(_) => values.push((name, value)),
                Err(mistake) => item.mistake(mistake),
            }
        }
    }
    values
}

/// Reports keys that only affect forwarding on a route that does not forward.
fn refuse_idle_keys(fields: &Fields<'_>, route: &Route) {
    if matches!(route.action, Action::Cluster(_)) {
        return;
    }
    let without_files = route.files.is_none();
    let idle = [
        ("strip_prefix", route.strip_prefix && without_files),
        ("rewrite", route.rewrite.is_some() && without_files),
        ("add_prefix", route.add_prefix.is_some() && without_files),
        ("host_rewrite", route.host_rewrite.is_some()),
        ("request_headers", route.request_headers != HeaderEdits::default()),
        ("direct_return", route.direct_return != RouteDirect::Auto),
        ("response_timeout", route.response_timeout_ms.is_some()),
        ("body_idle_timeout", route.body_idle_timeout_ms.is_some() && without_files),
        ("retry", route.retry.is_some()),
        ("error_pages_for", route.error_pages_for.is_some()),
        ("sendfile", route.sendfile.is_some()),
        ("compress", route.compress.is_some()),
        ("cache", route.cache.is_some()),
    ];
    for (key, given) in idle.into_iter().chain(route.buffering.differences()) {
        if given {
            let path: Path = fields.path.key(key);
            fields.problems.add(&path, "this has no effect on a route without a cluster; remove it");
        }
    }
}

/// The routes of a file without `routes`: any request goes to the only cluster, if a listener speaks HTTP.
pub(super) fn only(config: &Config) -> Vec<Route> {
    let http = config.listeners.iter().any(|listener| listener.protocol == Protocol::Http);
    match config.clusters.keys().next() {
        Some(name) if http && config.clusters.len() == 1 => {
            vec![Route::new("default", Action::Cluster(name.clone()))]
        }
        _ => Vec::new(),
    }
}
