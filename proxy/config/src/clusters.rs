//! Reads `clusters`: endpoints, balancing, health.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use serde_yaml::Value;

use super::defaults::{MAX_IN_FLIGHT, PORT, WEIGHT};
use super::reader::{Fields, Item};
use super::{
    Address, AutoLimit, Balance, Cluster, Endpoint, HashKey, HealthCheck, MaxInFlight, Queue, text,
    upstream_tls,
};

/// Clusters in one configuration.
const CLUSTERS_MAX: usize = 1000;
/// Endpoints in one cluster; each has its own pool in every worker.
const ENDPOINTS_MAX: usize = 1000;
/// Expected status ranges of one health check.
const STATUSES_MAX: usize = 100;

/// Every cluster, those with mistakes too, so that what names them is not reported as well.
pub(super) fn read(root: &mut Fields<'_>) -> BTreeMap<String, Cluster> {
    let mut clusters = BTreeMap::new();
    let Some(item) = root.get("clusters") else {
        return clusters;
    };
    for (name, item) in item.entries(CLUSTERS_MAX) {
        if let Err(message) = text::name(&name) {
            item.mistake(message);
        }
        clusters.insert(name, cluster(&item));
    }
    clusters
}

fn cluster(item: &Item<'_>) -> Cluster {
    let mut fields = item.fields();
    let mut cluster = Cluster::default();
    if let Some(item) = fields.require("endpoints", "a list of addresses") {
        let https;
        (cluster.endpoints, https) = endpoints(&item);
        cluster.tls = upstream_tls::read(&mut fields, https);
        if let Some(address) = upstream_tls::nameless(cluster.tls.as_ref(), &cluster.endpoints) {
            item.mistake(format!(
                "{address} has no name that a certificate could be for; write tls.server_name"
            ));
        }
    }
    cluster.protocol = fields.one_of("protocol", cluster.protocol);
    if let Some(balance) = fields.get("balance").and_then(|item| balance(&item)) {
        cluster.balance = balance;
    }
    cluster.health_check = fields.get("health_check").and_then(|item| health_check(&item));
    if let Some(mut ejection) = fields.get("ejection").map(|item| item.fields()) {
        cluster.ejection.read_numbers(&mut ejection);
        ejection.finish();
    }
    cluster.fail_open = fields.boolean("fail_open", cluster.fail_open);
    cluster.state_file = fields.text("state_file").map(PathBuf::from);
    if let Some(mut pool) = fields.get("pool").map(|item| item.fields()) {
        cluster.pool.read_numbers(&mut pool);
        pool.finish();
    }
    cluster.read_numbers(&mut fields);
    if let Some(item) = fields.get("endpoint_header") {
        cluster.endpoint_header = checked(&item, |name| text::edited_field_name(name, false));
    }
    if let Some(mut retry) = fields.get("retry").map(|item| item.fields()) {
        cluster.retry.read_numbers(&mut retry);
        retry.finish();
    }
    if let Some(limit) = fields.get("max_in_flight").and_then(|item| max_in_flight(&item)) {
        cluster.max_in_flight = limit;
    }
    if let Some(item) = fields.get("auto_limit") {
        cluster.auto_limit = auto_limit(&item);
    }
    if let Some(item) = fields.get("queue") {
        cluster.queue = queue(&item);
    }
    cluster.bypass = fields.one_of("bypass", cluster.bypass);
    fields.finish();
    cluster
}

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

fn auto_limit(item: &Item<'_>) -> AutoLimit {
    let mut fields = item.fields();
    let mut limit = AutoLimit::default();
    limit.read_numbers(&mut fields);
    if limit.min > limit.max {
        fields.mistake(format!("min {} is over max {}; lower it", limit.min, limit.max));
    }
    fields.finish();
    limit
}

fn queue(item: &Item<'_>) -> Queue {
    let mut fields = item.fields();
    let mut queue = Queue::default();
    queue.read_numbers(&mut fields);
    queue.order = fields.one_of("order", queue.order);
    queue.fair_by_client = fields.boolean("fair_by_client", queue.fair_by_client);
    fields.finish();
    queue
}

/// Every endpoint, and whether they are written as https.
fn endpoints(item: &Item<'_>) -> (Vec<Endpoint>, bool) {
    let items = item.list(ENDPOINTS_MAX);
    if items.is_empty() && item.value.is_sequence() {
        item.mistake("no endpoint is here; write at least one address");
    }
    let mut seen = HashSet::new();
    let mut endpoints = Vec::new();
    let mut schemes = HashSet::new();
    for item in items {
        if let Some((endpoint, https)) = endpoint(&item) {
            if schemes.insert(https) && schemes.len() > 1 {
                item.mistake("some endpoints are written as https and others are not; write all alike");
            }
            if !seen.insert(endpoint.address.clone()) {
                item.mistake(format!("{} is here twice; keep one and give it a weight", endpoint.address));
            }
            endpoints.push(endpoint);
        }
    }
    (endpoints, schemes.contains(&true))
}

fn endpoint(item: &Item<'_>) -> Option<(Endpoint, bool)> {
    let (address, weight, limit, bypass) = match item.value {
        Value::Mapping(_) => {
            let mut fields = item.fields();
            let address = fields.require("address", "host:port or unix:/path");
            let weight = fields.number("weight", WEIGHT);
            let limit = fields.get("max_in_flight").and_then(|item| max_in_flight(&item));
            let bypass = fields.get("bypass").and_then(|item| item.one_of());
            fields.finish();
            (address?, weight, limit, bypass)
        }
        _ => (item.clone(), None, None, None),
    };
    let (value, https) = upstream_address(&address)?;
    let weight = weight.and_then(|weight| u32::try_from(weight).ok()).unwrap_or(1);
    Some((Endpoint { address: value, weight, max_in_flight: limit, bypass }, https))
}

/// An address to connect to, which has a port, and whether it is written as https.
fn upstream_address(item: &Item<'_>) -> Option<(Address, bool)> {
    let text = upstream_tls::without_scheme(item.value.as_str().unwrap_or_default());
    let (text, https) = text.map_err(|message| item.mistake(message)).ok()?;
    let value = if https { Value::from(text) } else { item.value.clone() };
    let address = address(&Item { value: &value, ..item.clone() })?;
    if address.port() == Some(0) {
        item.mistake(format!("{address} has port 0, which nothing listens on; write its port"));
        return None;
    }
    Some((address, https))
}

/// An address to bind or connect to.
pub(super) fn address(item: &Item<'_>) -> Option<Address> {
    let Value::String(text) = item.value else {
        item.wrong_kind("host:port or unix:/path");
        return None;
    };
    text.parse().map_err(|message: String| item.mistake(message)).ok()
}

/// Text that passes a check.
pub(super) fn checked(item: &Item<'_>, check: impl Fn(&str) -> Result<(), String>) -> Option<String> {
    let text = item.text()?;
    match check(text) {
        Ok(()) => Some(text.to_owned()),
        Err(message) => {
            item.mistake(message);
            None
        }
    }
}

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
            return hash_key(&key?).map(Balance::Hash);
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
            checked(&item, text::field_name).map(|name| HashKey::Header(name.to_ascii_lowercase()))
        }
        (None, Some(item)) => checked(&item, text::field_name).map(HashKey::Cookie),
        _ => {
            fields.mistake("not exactly one key is here; write header or cookie");
            None
        }
    };
    fields.finish();
    key
}

fn health_check(item: &Item<'_>) -> Option<HealthCheck> {
    if item.is_off() {
        return None;
    }
    let mut fields = item.fields();
    let mut check = HealthCheck::default();
    if let Some(path) = fields.get("path").and_then(|item| checked(&item, |path| text::url_path(path, true)))
    {
        check.path = path;
    }
    check.host = fields.get("host").and_then(|item| checked(&item, text::host_value));
    check.port = fields.number("port", PORT).and_then(|port| u16::try_from(port).ok());
    check.read_numbers(&mut fields);
    if fields.get("timeout_ms").is_none() {
        check.timeout_ms = check.timeout_ms.min(check.interval_ms);
    }
    if check.timeout_ms > check.interval_ms {
        let message =
            format!("timeout_ms {} is over interval_ms {}; lower it", check.timeout_ms, check.interval_ms);
        fields.mistake(message);
    }
    if let Some(item) = fields.get("expected_statuses") {
        check.expected_statuses = statuses(&item);
    }
    fields.finish();
    Some(check)
}

fn statuses(item: &Item<'_>) -> Vec<(u16, u16)> {
    let items = item.list(STATUSES_MAX);
    if items.is_empty() && item.value.is_sequence() {
        item.mistake("no status is here; write at least one, such as 200 or \"200-399\"");
    }
    items.iter().filter_map(status_range).collect()
}

fn status_range(item: &Item<'_>) -> Option<(u16, u16)> {
    let parse = |text: &str| text.trim().parse::<u16>().ok().filter(|status| (100..=599).contains(status));
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
        item.wrong_kind("a status from 100 to 599 or a range such as \"200-399\"");
    }
    range
}
