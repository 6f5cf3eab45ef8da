//! Reads `clusters`: endpoints, balancing, health.

use std::collections::{BTreeMap, HashSet};

use serde_yaml::Value;

use super::codec::{Codec, File, Flag, Optional, Or, Own, Table, checked, keys, map, number, word};
use super::defaults::{
    BODY_IDLE_TIMEOUT_MS, DAY_MS, HOUR_MS, KIB, MAX_IN_FLIGHT, MIB, MINUTE_MS, PORT, RESPONSE_TIMEOUT_MS,
    WEIGHT,
};
use super::out::{Out, list};
use super::reader::{Fields, Item};
use super::shape::{Key, Shape};
use super::unit::Unit;
use super::{
    Address, AutoLimit, Balance, CheckProtocol, Cluster, Ejection, Endpoint, EndpointBypass, HashKey,
    HealthCheck, MaxInFlight, Mistake, Pool, Queue, Retry, UpstreamProtocol, Word, text, upstream_tls,
};

/// Maximum number of clusters.
const CLUSTERS_MAX: usize = 1000;
/// Maximum number of endpoints of one cluster; each has its own pool in every worker.
const ENDPOINTS_MAX: usize = 1000;
/// Maximum number of status ranges of one health check.
pub(super) const STATUSES_MAX: usize = 100;

/// Reads every cluster. Clusters with mistakes are kept, so that references to them are not reported too.
pub(super) fn read(root: &mut Fields<'_>) -> BTreeMap<String, Cluster> {
    let (mut clusters, mut memories) = (BTreeMap::new(), BTreeMap::new());
    let Some(item) = root.get("clusters") else {
        return clusters;
    };
    for (name, item) in item.entries(CLUSTERS_MAX) {
        if let Err(message) = text::name(&name) {
            item.mistake(message);
        }
        let read = cluster(&item);
        if let Some(file) = read.discover.as_ref().and_then(|discover| discover.memory_file.clone())
            && let Some(other) = memories.insert(file, name.clone())
        {
            item.mistake(format!("discover.memory_file is that of cluster {other}; write another one"));
        }
        clusters.insert(name, read);
    }
    clusters
}

fn cluster(item: &Item<'_>) -> Cluster {
    let mut fields = item.fields();
    let mut cluster = Cluster::default();
    let item = match item.value.get("discover").is_some() {
        true => fields.get("endpoints"),
        false => fields.require("endpoints", "a list of addresses, or discover"),
    };
    if let Some(item) = item {
        let https;
        (cluster.endpoints, https) = endpoints(&item);
        cluster.tls = upstream_tls::read(&mut fields, https);
        if let Some(address) = upstream_tls::nameless(cluster.tls.as_ref(), &cluster.endpoints) {
            item.mistake(format!(
                "{address} has no name to verify a certificate against; write tls.server_name"
            ));
        }
    } else {
        cluster.tls = upstream_tls::read(&mut fields, false);
    }
    cluster.read_keys(&mut fields);
    if cluster.affinity.is_some() && matches!(cluster.balance, Balance::Hash(_)) {
        let path = fields.path.key("affinity");
        fields.problems.add(&path, "a hash already keeps clients at their endpoints; remove it or balance");
    }
    if cluster.retry.hedge && cluster.protocol == UpstreamProtocol::H2 {
        let path = fields.path.key("retry").key("hedge");
        fields.problems.add(&path, "this has no effect with protocol: h2; remove it");
    }
    if cluster.retry.hedge && (cluster.affinity.is_some() || matches!(cluster.balance, Balance::Hash(_))) {
        let path = fields.path.key("retry").key("hedge");
        let message = "clients are kept at their endpoints by affinity or a hash, and another one does not know them; remove it";
        fields.problems.add(&path, message);
    }
    if cluster.hash_load_percent_max.is_some() && !matches!(cluster.balance, Balance::Hash(_)) {
        let path = fields.path.key("hash_load_percent_max");
        fields.problems.add(&path, "this has no effect without balance: {hash: …}; remove it");
    }
    fields.finish();
    cluster
}

/// Every cluster by name, with all defaults.
pub(super) fn write(clusters: &BTreeMap<String, Cluster>) -> Value {
    let mut out = Out::default();
    for (name, cluster) in clusters {
        let mut one = Out::default();
        if !cluster.endpoints.is_empty() || cluster.discover.is_none() {
            one.put("endpoints", list(&cluster.endpoints, write_endpoint));
        }
        one.put("tls", upstream_tls::write(cluster.tls.as_ref()));
        cluster.write_keys(&mut one);
        out.put(name, one.done());
    }
    out.done()
}

/// The shape of `clusters`.
pub(super) fn shape() -> Shape {
    let mut keys = vec![
        Key::optional("endpoints", Shape::some(endpoint_shape(), ENDPOINTS_MAX)),
        Key::optional("tls", upstream_tls::shape()),
    ];
    keys.extend(Cluster::keys());
    Shape::entries(Shape::MapWithAny(keys, &["endpoints", "discover"]), CLUSTERS_MAX)
}

keys! { Cluster {
    // Within a data centre, connecting takes a millisecond; three seconds outlast one lost SYN.
    connect_timeout_ms: 3000, number(1..=10 * MINUTE_MS);
    // As nginx's proxy_read_timeout.
    response_timeout_ms: MINUTE_MS, number(RESPONSE_TIMEOUT_MS);
    // As above. A body that makes progress never reaches it, unless it trickles.
    body_idle_timeout_ms: MINUTE_MS, number(BODY_IDLE_TIMEOUT_MS);
    // Websockets can be silent for long; an hour only removes dead ones.
    tunnel_idle_timeout_ms: HOUR_MS, number(1..=7 * DAY_MS);
    // Twice the limit of requests: applications set large cookies.
    response_head_bytes_max: 64 * KIB as usize, number(256..=MIB);
    // As above.
    response_headers_max: 200, number(1..=1000);
    // One 100 and a few 103s; more is a bug.
    interim_responses_max: 10, number(0..=1000);
    // Follows a container that moved within seconds, at little cost for the name server.
    resolve_interval_ms: 10_000, number(100..=DAY_MS);
    // Off: the applications of most clusters start with all of them, and a limit of requests spares one that is slow.
    slow_start_ms: 0, number(0..=HOUR_MS);
    // The same as a listener's default number of connections; a database wants far fewer.
    tunnels_max: 20_000, number(0..=10_000_000);
    protocol: UpstreamProtocol::Http1, word();
    balance: Balance::LeastRequests, BALANCE;
    hash_load_percent_max: None, Or("off", number(101..=10_000));
    affinity: None, Or("off", map());
    health_check: None, Or("off", map());
    ejection: Ejection::default(), map();
    fail_open: true, Flag;
    state_file: None, Optional(File);
    pool: Pool::default(), map();
    endpoint_header: None, Optional(checked(|name| text::edited_field_name(name, false)));
    retry: Retry::default(), map();
    max_in_flight: MaxInFlight::Off, MAX_IN_FLIGHT_CODEC;
    auto_limit: AutoLimit::default(), map();
    queue: Queue::default(), map();
    bypass: EndpointBypass::Auto, word();
    discover: None, Optional(map());
} rest {
    endpoints: Vec::new(),
    tls: None,
}}

const MAX_IN_FLIGHT_CODEC: Own<MaxInFlight> = Own {
    read: max_in_flight,
    write: |limit| match limit {
        MaxInFlight::Off => "off".into(),
        MaxInFlight::Fixed(requests) => (*requests).into(),
        MaxInFlight::Auto => "auto".into(),
    },
    shape: || {
        let number = Shape::Integer(*MAX_IN_FLIGHT.start(), *MAX_IN_FLIGHT.end());
        Shape::AnyOf(vec![number, Shape::words(&["auto", "off"])])
    },
};

fn max_in_flight(item: &Item<'_>) -> Option<MaxInFlight> {
    match item.value {
        Value::Number(_) => {
            let number = item.number(MAX_IN_FLIGHT, "requests")?;
            Some(MaxInFlight::Fixed(u32::try_from(number).unwrap_or(u32::MAX)))
        }
        _ if item.is_off() => Some(MaxInFlight::Off),
        Value::String(word) if word == "auto" => Some(MaxInFlight::Auto),
        _ => {
            item.wrong_kind("requests from 1 to 1000000, auto or off");
            None
        }
    }
}

/// Every endpoint, and whether they use `https://`.
fn endpoints(item: &Item<'_>) -> (Vec<Endpoint>, bool) {
    let items = item.list(ENDPOINTS_MAX);
    if items.is_empty() && item.value.is_sequence() {
        item.mistake("the list is empty; write at least one address");
    }
    let mut seen = HashSet::new();
    let mut endpoints = Vec::new();
    let mut schemes = HashSet::new();
    for item in items {
        if let Some((endpoint, https)) = endpoint(&item) {
            if schemes.insert(https) && schemes.len() > 1 {
                item.mistake("some endpoints use https:// and others do not; use it for all or none");
            }
            if !seen.insert(endpoint.address.clone()) {
                item.mistake(format!("{} is listed twice; keep one and give it a weight", endpoint.address));
            }
            endpoints.push(endpoint);
        }
    }
    if !endpoints.is_empty() && endpoints.iter().all(|endpoint: &Endpoint| endpoint.backup) {
        item.mistake("all endpoints are backups; write at least one without backup");
    }
    (endpoints, schemes.contains(&true))
}

/// The endpoints that a source has found; the first of equal addresses counts.
pub(super) fn found(item: &Item<'_>, most: usize) -> Vec<Endpoint> {
    let mut seen = HashSet::new();
    let found = item.list(most).into_iter().filter_map(|item| found_one(&item));
    found.filter(|endpoint| seen.insert(endpoint.address.clone())).collect()
}

/// An endpoint that a source has found.
pub(super) fn found_one(item: &Item<'_>) -> Option<Endpoint> {
    let (endpoint, https) = endpoint(item)?;
    if https {
        item.mistake("https:// has no effect here; remove it, and write tls for the whole cluster");
    }
    Some(endpoint)
}

fn endpoint(item: &Item<'_>) -> Option<(Endpoint, bool)> {
    let (address, weight, limit, bypass, backup) = match item.value {
        Value::Mapping(_) => {
            let mut fields = item.fields();
            let address = fields.require("address", "host:port or unix:/path");
            let weight = fields.number("weight", WEIGHT);
            let limit = fields.get("max_in_flight").and_then(|item| max_in_flight(&item));
            let bypass = fields.get("bypass").and_then(|item| item.one_of());
            let backup = fields.get("backup").and_then(|item| item.boolean()).unwrap_or(false);
            fields.finish();
            (address?, weight, limit, bypass, backup)
        }
        _ => (item.clone(), None, None, None, false),
    };
    let (value, https) = upstream_address(&address)?;
    let weight = weight.and_then(|weight| u32::try_from(weight).ok()).unwrap_or(1);
    Some((Endpoint { address: value, weight, max_in_flight: limit, bypass, backup }, https))
}

/// One endpoint.
pub(super) fn write_endpoint(endpoint: &Endpoint) -> Value {
    let mut out = Out::default();
    out.put("address", endpoint.address.to_string());
    out.put("weight", endpoint.weight);
    out.put_some("max_in_flight", endpoint.max_in_flight.and_then(|limit| MAX_IN_FLIGHT_CODEC.write(&limit)));
    out.put_some("bypass", endpoint.bypass.map(Word::word));
    out.put("backup", endpoint.backup);
    out.done()
}

fn endpoint_shape() -> Shape {
    let keys = vec![
        Key::required("address", address_shape()),
        Key::optional("weight", Shape::Integer(*WEIGHT.start(), *WEIGHT.end())),
        Key::optional("max_in_flight", MAX_IN_FLIGHT_CODEC.shape()),
        Key::optional("bypass", word::<EndpointBypass>().shape()),
        Key::optional("backup", Shape::Boolean),
    ];
    Shape::AnyOf(vec![address_shape(), Shape::Map(keys)])
}

/// An address to connect to, which needs a port, and whether it uses `https://`.
fn upstream_address(item: &Item<'_>) -> Option<(Address, bool)> {
    let (value, https) = match item.value.as_str() {
        Some(text) => {
            let read = upstream_tls::without_scheme(text);
            let (text, https) = read.map_err(|message| item.mistake(message)).ok()?;
            (Value::from(text), https)
        }
        None => (item.value.clone(), false),
    };
    let address = address(&Item { value: &value, ..item.clone() }, LOOPBACK)?;
    if address.port() == Some(0) {
        item.mistake(format!("{address} has port 0, which nothing listens on; write its port"));
        return None;
    }
    Some((address, https))
}

/// The host of an address that is only a port, where others must not reach it, or where the applications are.
pub(super) const LOOPBACK: &str = "127.0.0.1";

/// An address to bind or connect to. `host` completes one that is only a port: `8080` or `:8080`.
pub(super) fn address(item: &Item<'_>, host: &str) -> Option<Address> {
    let text = match item.value {
        Value::String(text) => super::address::with_host(text, host),
        Value::Number(number) => super::address::with_host(&number.to_string(), host),
        _ => {
            item.wrong_kind("host:port, a port or unix:/path");
            return None;
        }
    };
    text.parse().map_err(|mistake: Mistake| item.mistake(mistake)).ok()
}

/// The shape of an address.
pub(super) fn address_shape() -> Shape {
    Shape::AnyOf(vec![Shape::TEXT, Shape::Integer(*PORT.start(), *PORT.end())])
}

/// How an endpoint is picked.
const BALANCE: Own<Balance> = Own { read: balance, write: write_balance, shape: balance_shape };

fn balance(item: &Item<'_>) -> Option<Balance> {
    const WORDS: &[&str] = &["least_requests", "round_robin", "random_two", "{hash: …}"];
    match item.value {
        Value::String(word) => match word.as_str() {
            "least_requests" => return Some(Balance::LeastRequests),
            "round_robin" => return Some(Balance::RoundRobin),
            "random_two" => return Some(Balance::RandomTwo),
            _ => item.not_one_of(WORDS),
        },
        Value::Mapping(_) => {
            let mut fields = item.fields();
            let key = fields.require("hash", "client_address, {header: name} or {cookie: name}");
            fields.finish();
            return HASH_KEY.read(&key?).map(Balance::Hash);
        }
        _ => item.not_one_of(WORDS),
    }
    None
}

fn hash_key(item: &Item<'_>) -> Option<HashKey> {
    if item.value.as_str() == Some("client_address") {
        return Some(HashKey::ClientAddress);
    }
    if !item.value.is_mapping() {
        item.not_one_of(&["client_address", "{header: name}", "{cookie: name}"]);
        return None;
    }
    let mut fields = item.fields();
    let header = fields.get("header");
    let cookie = fields.get("cookie");
    let key = match (header, cookie) {
        (Some(item), None) => {
            item.checked(text::field_name).map(|name| HashKey::Header(name.to_ascii_lowercase()))
        }
        (None, Some(item)) => item.checked(text::field_name).map(HashKey::Cookie),
        _ => {
            fields.mistake("expected exactly one key; write header or cookie");
            None
        }
    };
    fields.finish();
    key
}

fn write_balance(balance: &Balance) -> Value {
    match balance {
        Balance::LeastRequests => "least_requests".into(),
        Balance::RoundRobin => "round_robin".into(),
        Balance::RandomTwo => "random_two".into(),
        Balance::Hash(key) => {
            let mut out = Out::default();
            out.put_key("hash", HASH_KEY.write(key));
            out.done()
        }
    }
}

fn balance_shape() -> Shape {
    let words = Shape::words(&["least_requests", "round_robin", "random_two"]);
    Shape::AnyOf(vec![words, Shape::Map(vec![Key::required("hash", HASH_KEY.shape())])])
}

/// What distinguishes clients.
pub(super) const HASH_KEY: Own<HashKey> =
    Own { read: hash_key, write: write_hash_key, shape: hash_key_shape };

fn write_hash_key(key: &HashKey) -> Value {
    let mut named = Out::default();
    match key {
        HashKey::ClientAddress => return "client_address".into(),
        HashKey::Header(name) => named.put("header", name.as_str()),
        HashKey::Cookie(name) => named.put("cookie", name.as_str()),
    }
    named.done()
}

fn hash_key_shape() -> Shape {
    let one = |name| Shape::Map(vec![Key::required(name, Shape::TEXT)]);
    Shape::AnyOf(vec![Shape::words(&["client_address"]), one("header"), one("cookie")])
}

keys! { HealthCheck, settle consistent_check {
    protocol: CheckProtocol::Http, word();
    path: "/".to_owned(), checked(|path| text::url_path(path, true));
    host: None, Optional(checked(text::host_value));
    port: None, Optional(number(PORT));
    // Marks an endpoint unhealthy within 15 s, at a negligible cost for the server.
    interval_ms: 5000, number(10..=DAY_MS);
    // Below the interval; an endpoint that takes longer than this is not healthy.
    timeout_ms: 2000, number(1..=DAY_MS);
    // Two, so that one lucky response does not restore it.
    healthy_after: 2, number(1..=1000);
    // Three, so that one lost packet does not remove it.
    unhealthy_after: 3, number(1..=1000);
    expected_statuses: vec![(200, 399)], STATUSES;
    expected_body: None, Optional(checked(|_| Ok(())));
    grpc_service: None, Optional(checked(text::name));
}}

fn consistent_check(check: &mut HealthCheck, fields: &mut Fields<'_>) {
    within_the_interval(check, fields);
    let (http, grpc) = (check.protocol == CheckProtocol::Http, check.protocol == CheckProtocol::Grpc);
    let idle = [("path", http), ("expected_statuses", http), ("expected_body", http), ("grpc_service", grpc)];
    for (key, has_effect) in idle {
        if !has_effect && fields.get(key).is_some() {
            let message = format!("this has no effect with protocol: {}; remove it", check.protocol);
            fields.problems.add(&fields.path.key(key), message);
        }
    }
    if check.protocol == CheckProtocol::Tcp && fields.get("host").is_some() {
        fields.problems.add(&fields.path.key("host"), "this has no effect with protocol: tcp; remove it");
    }
}

/// A check must end before the next one starts. A default timeout is reduced to the interval.
fn within_the_interval(check: &mut HealthCheck, fields: &mut Fields<'_>) {
    if fields.get("timeout_ms").is_none() {
        check.timeout_ms = check.timeout_ms.min(check.interval_ms);
    }
    if check.timeout_ms > check.interval_ms {
        let write = |number| Unit::Milliseconds.write(number);
        let (timeout, interval) = (write(check.timeout_ms), write(check.interval_ms));
        fields.mistake(format!("timeout {timeout} is over interval {interval}; lower it"));
    }
}

const STATUSES: Own<Vec<(u16, u16)>> = Own {
    read: |item| Some(statuses(item)),
    write: |statuses| list(statuses, |(low, high)| Value::from(format!("{low}-{high}"))),
    shape: || Shape::some(Shape::AnyOf(vec![Shape::Integer(100, 599), Shape::TEXT]), STATUSES_MAX),
};

fn statuses(item: &Item<'_>) -> Vec<(u16, u16)> {
    let items = item.list(STATUSES_MAX);
    if items.is_empty() && item.value.is_sequence() {
        item.mistake("the list is empty; write at least one, such as 200 or \"200-399\"");
    }
    items.iter().filter_map(|item| status_range(item, 100, "200-399")).collect()
}

/// A status from `first` to 599, or a range of them.
pub(super) fn status_range(item: &Item<'_>, first: u16, example: &str) -> Option<(u16, u16)> {
    let parse = |text: &str| text.trim().parse::<u16>().ok().filter(|status| (first..=599).contains(status));
    let range = match item.value {
        Value::Number(number) => parse(&number.to_string()).map(|status| (status, status)),
        Value::String(text) => match text.split_once('-') {
            Some((low, high)) => parse(low).zip(parse(high)),
            None => parse(text).map(|status| (status, status)),
        },
        _ => None,
    };
    let range = range.filter(|(low, high)| low <= high);
    if range.is_none() {
        item.wrong_kind(&format!("a status from {first} to 599 or a range such as \"{example}\""));
    }
    range
}
