//! The whole configuration: its keys, and the order in which keys that others depend on are read.

use std::collections::BTreeMap;

use serde_yaml::Value;

use super::codec::{File, Flag, List, Optional, Or, Table, checked, keys, map, number, word};
use super::defaults::{DAY_MS, MINUTE_MS};
use super::general::{
    ACCESS_LOG, ADMIN, CONTROL, DEMO_ORIGIN, ERROR_PAGES, NETWORK, REPLACED, TRUSTED_MAX, WORKER_COUNT,
    account,
};
use super::out::Out;
use super::path::Path;
use super::problem::Problems;
use super::reader::Item;
use super::shape::{Key, Shape};
use super::{
    AccessLog, Buffers, Compression, Config, ControlSocket, FileCache, KernelAssists, Limits, Runtime,
    ServicesState, WorkerPlacement, WorkerScheduling, access, acme, caches, clusters, general, rate_limit,
    routes, validate,
};

keys! { Config {
    // Most exchanges finish within it; supervisors kill after 30 to 90 s.
    drain_timeout_ms: 30_000, number(0..=DAY_MS);
    // Off: only who has a load balancer in front needs it.
    drain_delay_ms: 0, number(0..=10 * MINUTE_MS);
    trusted_proxies: Vec::new(), List(TRUSTED_MAX, NETWORK);
    access: Vec::new(), List(access::RULES_MAX, access::RULE);
    rate_limits: BTreeMap::new(), rate_limit::LIMITS;
    // Each takes about 64 bytes; with more, add what they have in common to access.
    bans_max: 100_000, number(1..=1_000_000);
    via: false, Flag;
    response_request_id: true, Flag;
    error_pages: BTreeMap::new(), ERROR_PAGES;
    error_pages_for: Vec::new(), REPLACED;
    access_log: AccessLog::default(), ACCESS_LOG;
    tracing: None, Or("off", map());
    qlog: None, Or("off", map());
    debug_token_file: None, Optional(File);
    http3_secret_file: None, Optional(File);
    admin: None, ADMIN;
    admin_metrics_only: false, Flag;
    admin_token_file: None, Optional(File);
    control: ControlSocket::Auto, CONTROL;
    services: ServicesState::default(), map();
    store: None, Or("off", map());
    workers: 0, WORKER_COUNT;
    runtime: Runtime::Auto, word();
    worker_scheduling: WorkerScheduling::Batch, word();
    worker_placement: WorkerPlacement::Spread, word();
    user: None, Optional(checked(account));
    group: None, Optional(checked(account));
    caches: BTreeMap::new(), caches::CACHES;
    file_cache: FileCache::default(), map();
    compression: Compression::default(), map();
    buffers: Buffers::default(), map();
    kernel: KernelAssists::default(), map();
    demo_origin: None, Or("off", DEMO_ORIGIN);
} rest {
    listeners: Vec::new(),
    routes: Vec::new(),
    clusters: BTreeMap::new(),
    limits: Limits::default(),
    acme: None,
    admin_if_free: false,
}}

keys! { ServicesState {
    state_file: None, Optional(File);
    kamal_state_file: None, Optional(File);
}}

/// Reads the configuration of a tree; mistakes go to `problems`.
pub(super) fn read(tree: &Value, problems: &Problems) -> Config {
    let mut root = Item::new(tree, Path::root(), problems).fields();
    let mut config = Config::default();
    if root.is_broken() {
        return config;
    }
    config.limits = general::limits(&mut root, &config.limits);
    config.listeners = general::listeners(&mut root, &config.limits);
    config.clusters = clusters::read(&mut root);
    let given = routes::read(&mut root, &config.clusters);
    let routes_given = given.is_some();
    config.routes = given.unwrap_or_else(|| routes::only(&config));
    config.acme = acme::acme(&mut root);
    config.read_keys(&mut root);
    root.refuse_null("access", "rules");
    root.finish();
    validate::check(&config, routes_given, problems);
    config
}

/// The configuration as values, with all defaults. They read back to an equal one.
pub(super) fn write(config: &Config) -> Value {
    let mut out = Out::default();
    out.put("listeners", general::write_listeners(&config.listeners));
    out.put("routes", routes::write(&config.routes));
    out.put("clusters", clusters::write(&config.clusters));
    out.put("limits", config.limits.written());
    out.put("acme", acme::write(config.acme.as_ref()));
    config.write_keys(&mut out);
    out.done()
}

/// The shape of a configuration.
pub(super) fn shape() -> Shape {
    let mut keys = vec![
        Key::required("listeners", general::listeners_shape()),
        Key::optional("routes", routes::shape()),
        Key::optional("clusters", clusters::shape()),
        Key::optional("limits", Shape::Map(Limits::keys())),
        Key::optional("acme", acme::shape()),
    ];
    keys.extend(Config::keys());
    Shape::Map(keys)
}
