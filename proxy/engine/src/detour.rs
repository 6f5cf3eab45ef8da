//! What in a configuration keeps the responses of a route off direct return.

use sluice_config::{Action, Auth, Cluster, Config, Route, RouteDirect, Switch};
use sluice_ebpf::head::{FIELDS_MAX, TEXT_BYTES};

/// The keys because of which sluice copies the responses of a route to a cluster, with the reason for each. Empty if
/// direct return may be used, or if the route answers by itself.
pub fn detours(route: &Route, config: &Config) -> Vec<(&'static str, &'static str)> {
    let Action::Cluster(name) = &route.action else {
        return Vec::new();
    };
    let edits = &route.response_headers;
    let is_edited =
        [&edits.set, &edits.add].iter().any(|pairs| !pairs.is_empty()) || !edits.remove.is_empty();
    let changes = [
        (route.direct_return == RouteDirect::Off, "direct_return", "is off"),
        (route.buffering.buffer_requests == Switch::On, "buffer_requests", "buffers the exchange"),
        (route.buffering.buffer_responses == Switch::On, "buffer_responses", "buffers responses"),
        (route.buffering.response_body_bytes_max > 0, "response_body_max", "counts their bytes"),
        (is_edited, "response_headers", "changes their heads"),
        (copies_to_client(route), "auth.forward.copy_to_client", "adds fields"),
        (route.cors.is_some(), "cors", "decides about fields"),
        (route.compress.is_some(), "compress", "encodes responses"),
        (route.cache.is_some(), "cache", "keeps responses"),
        (route.sendfile.is_some(), "sendfile", "may send a file in place of a response"),
        (replaces(route, config), "error_pages_for", "replaces responses"),
        (config.via, "via", "adds a field"),
        (hedges(route, config.clusters.get(name)), "retry.hedge", "asks two endpoints"),
        (retries_by_status(route, config.clusters.get(name)), "retry.statuses", "may drop them"),
    ];
    let cluster = config.clusters.get(name).into_iter().flat_map(cluster_detours);
    changes.into_iter().chain(cluster).filter_map(|(is_so, key, why)| is_so.then_some((key, why))).collect()
}

fn copies_to_client(route: &Route) -> bool {
    matches!(&route.auth, Some(Auth::Forward(forward)) if !forward.copy_to_client.is_empty())
}

fn replaces(route: &Route, config: &Config) -> bool {
    let statuses = route.error_pages_for.as_ref().unwrap_or(&config.error_pages_for);
    let mut pages = route.error_pages.keys().chain(config.error_pages.keys());
    pages.any(|status| statuses.iter().any(|(low, high)| (low..=high).contains(&status)))
}

fn hedges(route: &Route, cluster: Option<&Cluster>) -> bool {
    route.retry.or(cluster.map(|cluster| cluster.retry)).is_some_and(|retry| retry.hedge)
}

fn retries_by_status(route: &Route, cluster: Option<&Cluster>) -> bool {
    let retry = route.retry.or(cluster.map(|cluster| cluster.retry));
    retry.is_some_and(|retry| !retry.statuses.is_empty())
}

/// sluice must accept every head that the program accepts, and send it unchanged.
fn cluster_detours(cluster: &Cluster) -> [(bool, &'static str, &'static str); 3] {
    let few_bytes = cluster.response_head_bytes_max < TEXT_BYTES;
    let few_fields = (cluster.response_headers_max as u64) < FIELDS_MAX;
    [
        (cluster.endpoint_header.is_some(), "endpoint_header", "adds a field"),
        (few_bytes, "response_head_max", "is smaller than what the eBPF program accepts"),
        (few_fields, "response_headers_max", "is smaller than what the eBPF program accepts"),
    ]
}
