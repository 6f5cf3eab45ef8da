//! The configuration as the data path uses it: validated, resolved, immutable.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arc_swap::{ArcSwap, Cache};
use ipnet::IpNet;
use regex::bytes::Regex;
use sluice_cache::Store;
use sluice_config::{self as config, Action, Auth, Config, Excess, Template, TemplatePart, Variable};
use sluice_core::access::{Gate, Gates};
use sluice_core::bans::Bans;
use sluice_core::client::{V6_BITS, share};
use sluice_core::clock;
use sluice_core::cluster::Cluster;
use sluice_core::cors::CorsPolicy;
use sluice_core::rate_limit::RateLimiter;
use sluice_core::router::{Rewrite, Router, normalised};
use sluice_core::service::entry::ServiceEntry;
use sluice_http::{FieldEdits, is_same_name};
use twox_hash::XxHash64;

use crate::debug;
use crate::detour::detours;
use crate::equipment::Equipment;
use crate::files::{FileRoute, HANDOFF_ANSWERS, Handoff, handoff_fields};
use crate::guard::Guard;
use crate::response::ErrorPages;
use crate::templates::EditTemplates;

/// Everything that an exchange looks up. A running exchange keeps the snapshot that it started with.
///
/// Many fields: one for each kind of thing that is looked up.
pub struct Snapshot {
    /// The configuration that it was built from.
    pub config: Config,
    /// The number of workers. To find it out anew reads files of the system, where it is one per core.
    pub(crate) workers: usize,
    /// Finds the route of a request.
    pub(crate) router: Router,
    /// Clients that may send requests, whatever the route; `None` lets everybody through.
    pub(crate) gates: Option<Gates>,
    /// Addresses that are turned away for now; the same in every snapshot of the process.
    pub bans: Arc<Bans>,
    /// Rate limits by name.
    pub limiters: BTreeMap<String, Arc<RateLimiter>>,
    /// What to do on each route, by index in `config.routes`.
    pub(crate) routes: Vec<RouteEntry>,
    /// Fields by which some route tells its application who the user is, in lower case.
    of_identity: BTreeSet<String>,
    /// Whether some route answers preflights.
    pub(crate) has_cors: bool,
    /// Fields of the access log with variables.
    pub(crate) logged: Vec<(String, Template)>,
    /// Caches by name; they go on in the next snapshot.
    pub caches: BTreeMap<String, Arc<Store>>,
    /// Clusters by name.
    pub clusters: BTreeMap<String, Arc<Cluster>>,
    /// What the routes need beside the configuration.
    pub equipment: Equipment,
    /// The token for debug fields, if configured.
    pub(crate) debug: Option<debug::Token>,
}

/// The current snapshot, which the control plane replaces.
pub type Live = Arc<ArcSwap<Snapshot>>;

/// One worker's view of the current snapshot: reading costs one load of a pointer that hardly ever changes.
pub(crate) struct View(RefCell<LastSeen>);

struct LastSeen {
    live: Cache<Live, Arc<Snapshot>>,
    last: Current,
}

/// The snapshot of one moment, for as long as this value lives.
#[derive(Clone)]
pub(crate) struct Current(Rc<SnapshotPin>);

/// A single count for all workers would be written by each of them with every exchange. Each worker therefore counts
/// its own uses, and holds one reference.
struct SnapshotPin(Arc<Snapshot>);

impl View {
    pub(crate) fn new(live: Live) -> Self {
        let mut live = Cache::new(live);
        let last = Current(Rc::new(SnapshotPin(Arc::clone(live.load()))));
        Self(RefCell::new(LastSeen { live, last }))
    }

    /// The current snapshot.
    pub(crate) fn current(&self) -> Current {
        let seen = &mut *self.0.borrow_mut();
        let live = seen.live.load();
        if !Arc::ptr_eq(live, &seen.last.0.0) {
            seen.last = Current(Rc::new(SnapshotPin(Arc::clone(live))));
        }
        seen.last.clone()
    }
}

impl Deref for Current {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.0.0
    }
}

/// A route prepared for use.
///
/// Many fields: one for each kind of key, prepared.
pub(crate) struct RouteEntry {
    /// Identical for all routes of this name in the process, and different from all others.
    pub(crate) id: u32,
    /// What it does.
    pub(crate) target: Target,
    /// The route as configured.
    pub(crate) config: config::Route,
    /// The target that it sends, if it is another one.
    pub(crate) rewrite: Option<Rewrite>,
    /// The clients that may use it, if not all may.
    pub(crate) gate: Option<Gate>,
    /// How often a client may use it; nearly always none.
    pub(crate) limiters: Box<[Arc<RateLimiter>]>,
    /// Who may use it; `None` is everybody.
    pub(crate) guard: Option<Guard>,
    /// The files that it responds with.
    pub(crate) files: Option<Box<FileRoute>>,
    /// Where its responses are kept.
    pub(crate) cache: Option<Arc<Store>>,
    /// What its responses are kept under: another one when the route leads to something else.
    pub(crate) cache_scope: String,
    /// Files that its application may name.
    pub(crate) handoff: Option<Box<Handoff>>,
    /// Where it redirects to, or the body of its response, if that has variables.
    pub(crate) template: Option<Template>,
    /// Its `path_regex`, if a variable refers to a group of it.
    pattern: Option<Regex>,
    /// Edits of heads that depend on the request; they replace those below.
    pub(crate) templates: Option<Box<EditTemplates>>,
    /// Edits of the request head.
    pub(crate) request_edits: Option<FieldEdits>,
    /// Edits of the response head.
    pub(crate) response_edits: Option<FieldEdits>,
    /// What browsers are told about scripts of other sites.
    pub(crate) cors: Option<Box<CorsPolicy>>,
    /// Whether dot segments are taken out of the target: an application that does not resolve them would take the path
    /// for one that a rule of another route keeps from clients.
    pub(crate) resolves_dots: bool,
    /// Its own error pages.
    pub(crate) pages: Option<ErrorPages>,
    /// Statuses of the application, in order, in place of which the client gets an error page.
    pub(crate) replaced: Box<[u16]>,
    /// Whether direct return may be used, which leaves responses unchanged.
    pub(crate) direct_return: bool,
}

impl RouteEntry {
    /// Which responses are encoded, what that may cost, and how many workers share it; `None` is none.
    pub(crate) fn encoding<'s>(
        &'s self,
        snapshot: &'s Snapshot,
    ) -> Option<(&'s config::Compress, &'s config::Compression, usize)> {
        let compress = self.config.compress.as_ref()?;
        Some((compress, &snapshot.config.compression, snapshot.workers))
    }

    /// What a group of its `path_regex` matches in the normal form of a path.
    pub(crate) fn group(&self, path: &[u8], name: &str) -> Option<Vec<u8>> {
        let pattern = self.pattern.as_ref()?;
        let path = normalised(path);
        let found = pattern.captures(&path)?.get(config::group_of(pattern, name)?)?;
        Some(found.as_bytes().to_vec())
    }
}

/// The target of a route.
pub(crate) enum Target {
    /// A cluster.
    Cluster(Arc<Cluster>),
    /// A deployed service, which decides for each request.
    Service(Arc<ServiceEntry>),
    /// A local response; see the route's action.
    Local,
}

impl Snapshot {
    /// Prepares a configuration for use with these clusters. Bans and the clients of rate limits continue from the
    /// snapshot before.
    pub fn new(
        config: Config,
        clusters: BTreeMap<String, Arc<Cluster>>,
        equipment: Equipment,
        before: Option<&Self>,
    ) -> Self {
        let bans = before.map_or_else(Arc::default, |before| Arc::clone(&before.bans));
        let limiters = limiters(&config, before);
        let caches = caches(&config, before);
        let of_identity = fields_of_identity(&config);
        let parts = RouteParts {
            config: &config,
            clusters: &clusters,
            limiters: &limiters,
            caches: &caches,
            equipment: &equipment,
            of_identity: &of_identity,
            has_rules: has_rules_of_paths(&config),
        };
        let routes = config.routes.iter().map(|route| entry(route, &parts)).collect();
        let debug = config.debug_token_file.as_deref().map(debug::Token::load);
        let router = Router::new(&config.routes);
        let gates = Gates::new(&config.access, &equipment.networks);
        let logged = logged(&config.access_log);
        let has_cors = config.routes.iter().any(|route| route.cors.is_some());
        Self {
            workers: config.worker_count(),
            of_identity,
            has_cors,
            logged,
            router,
            gates,
            bans,
            limiters,
            caches,
            routes,
            clusters,
            equipment,
            debug,
            config,
        }
    }

    /// Fields by which some route tells its application who the user is, in lower case.
    pub(crate) fn fields_of_identity(&self) -> impl Iterator<Item = &str> {
        self.of_identity.iter().map(String::as_str)
    }

    /// Whether a client's own fields of this name are removed, because an application believes them.
    pub(crate) fn is_of_identity(&self, name: &[u8]) -> bool {
        self.of_identity.iter().any(|own| is_same_name(own.as_bytes(), name))
    }

    /// Whether an address, in its canonical form, is one of `trusted_proxies`.
    pub fn trusts(&self, address: &IpAddr) -> bool {
        self.config.trusted_proxies.iter().any(|network| network.contains(address))
    }

    /// Whether one of `trusted_proxies` may be among the addresses that count as this client.
    fn trusts_some_of(&self, client: IpAddr) -> bool {
        let prefix = if client.is_ipv6() { V6_BITS } else { 32 };
        let Ok(client) = IpNet::new(client, prefix) else { return true };
        let overlaps = |network: &IpNet| network.contains(&client) || client.contains(network);
        self.config.trusted_proxies.iter().any(overlaps)
    }

    /// Has the kernel keep out a banned client that has come to a listening socket.
    pub(crate) fn keep_out(&self, client: IpAddr, listener: BorrowedFd<'_>) {
        if !self.trusts_some_of(share(client)) {
            self.bans.keep_out(client, listener, clock::now_ms());
        }
    }

    /// Has the kernel let in the trusted proxies that it may keep out since a time when they were not trusted.
    pub fn spare_trusted(&self) {
        if !self.config.trusted_proxies.is_empty() {
            self.bans.spare(|client| self.trusts_some_of(client));
        }
    }

    /// Lets the caches use their disks. No step of a reload may fail afterwards.
    pub fn start_caches(&self) {
        self.caches.values().for_each(Store::start);
    }

    /// The process ends, or does not: others are told of what changes from now on.
    pub fn drain_caches(&self, is_ending: bool) {
        self.caches.values().for_each(|store| store.drain(is_ending));
    }

    /// Retires the caches that do not go on in the snapshot after this one.
    pub fn retire_caches(&self, next: &Self) {
        let goes_on = |(name, store): &(&String, &Arc<Store>)| {
            next.caches.get(*name).is_some_and(|next| Arc::ptr_eq(store, next))
        };
        self.caches.iter().filter(|cache| !goes_on(cache)).for_each(|(_, store)| store.retire());
    }

    /// Lets the next process have the disks of the caches, with everything on them. Blocks.
    pub fn close_caches(&self, deadline: Instant) {
        self.caches.values().for_each(|store| store.close(deadline));
    }

    /// Directs the routes of deployed services, by name, to the services.
    pub fn with_services(mut self, services: &BTreeMap<String, Arc<ServiceEntry>>) -> Self {
        for route in &mut self.routes {
            if let Some(service) = services.get(&route.config.name) {
                route.target = Target::Service(Arc::clone(service));
            }
        }
        self
    }
}

/// What the entries of routes are made of.
struct RouteParts<'p> {
    config: &'p Config,
    clusters: &'p BTreeMap<String, Arc<Cluster>>,
    limiters: &'p BTreeMap<String, Arc<RateLimiter>>,
    caches: &'p BTreeMap<String, Arc<Store>>,
    equipment: &'p Equipment,
    of_identity: &'p BTreeSet<String>,
    has_rules: bool,
}

impl RouteParts<'_> {
    /// A route that removes the fields by which an application is told who the user is, unless it writes them itself.
    fn closed_to_clients(&self, route: &config::Route) -> config::Route {
        let mut route = route.clone();
        route.request_headers.remove.extend(self.of_identity.iter().cloned());
        route
    }
}

/// Whether some route keeps requests from an application because of their path.
fn has_rules_of_paths(config: &Config) -> bool {
    config.routes.iter().any(config::Route::is_rule)
        || config.access.iter().any(|rule| !rule.path_prefix.is_empty())
}

/// The fields by which some route tells an application who the user is. From clients, no route lets them through: an
/// application believes them whatever the path.
fn fields_of_identity(config: &Config) -> BTreeSet<String> {
    let copied = config.routes.iter().map(|route| match &route.auth {
        Some(Auth::Forward(forward)) => forward.copy.iter().collect::<Vec<_>>(),
        Some(Auth::Jwt(jwt)) => jwt.claims_to_headers.keys().collect(),
        Some(Auth::Basic(_) | Auth::Certificate(_)) | None => Vec::new(),
    });
    let edits = config.routes.iter().map(|route| &route.request_headers);
    let written = edits.flat_map(|edits| edits.set.iter().chain(&edits.add));
    let tells = |part: &TemplatePart| {
        matches!(part, TemplatePart::Variable(Variable::AuthUser | Variable::ClientCertSubject))
    };
    let tells_user = |template: Template| template.0.iter().any(tells);
    let telling = written.filter(|(_, value)| Template::read(value).is_ok_and(tells_user));
    let names = copied.flatten().chain(telling.map(|(name, _)| name));
    names.map(|name| name.to_ascii_lowercase()).collect()
}

fn entry(route: &config::Route, parts: &RouteParts<'_>) -> RouteEntry {
    let target = match &route.action {
        Action::Cluster(name) => {
            parts.clusters.get(name).map_or(Target::Local, |cluster| Target::Cluster(Arc::clone(cluster)))
        }
        Action::Files | Action::Redirect { .. } | Action::Respond { .. } => Target::Local,
    };
    let direct_return = matches!(target, Target::Cluster(_)) && detours(route, parts.config).is_empty();
    let of_route = route.rate_limits.iter().filter_map(|name| parts.limiters.get(name));
    let mut limiters: Vec<_> = of_route.map(Arc::clone).collect();
    // First those that ban, so that they count also the requests that others refuse.
    limiters.sort_by_key(|limiter| limiter.config.then != Excess::Ban);
    let pages = parts.equipment.pages_of_routes.get(&route.name).cloned();
    let statuses = route.error_pages_for.as_ref().unwrap_or(&parts.config.error_pages_for);
    let replaced = pages.as_ref().unwrap_or(&parts.equipment.pages).statuses_within(statuses);
    let told = route.sendfile.as_ref().map(|sendfile| told_of_files(route, sendfile));
    let route = told.as_ref().unwrap_or(route);
    let closed = (!parts.of_identity.is_empty()).then(|| parts.closed_to_clients(route));
    let route = closed.as_ref().unwrap_or(route);
    RouteEntry {
        id: route_id(&route.name),
        target,
        config: route.clone(),
        rewrite: Rewrite::of(route),
        gate: route.access.as_ref().map(|access| Gate::new(access, &parts.equipment.networks)),
        limiters: limiters.into(),
        guard: route.auth.as_ref().map(|auth| Guard::new(auth, parts.equipment)),
        template: match &route.action {
            // Checked with the configuration.
            Action::Redirect { location: text, .. }
            | Action::Respond { body: text, is_template: true, .. } => Template::read(text).ok(),
            Action::Cluster(_) | Action::Files | Action::Respond { .. } => None,
        },
        cache_scope: if route.cache.is_some() { scope(route) } else { String::new() },
        cache: route.cache.as_ref().and_then(|name| parts.caches.get(name)).map(Arc::clone),
        handoff: route.sendfile.as_ref().map(|sendfile| Box::new(Handoff::new(sendfile))),
        files: route.files.as_ref().map(|files| Box::new(FileRoute::new(files))),
        pattern: pattern_of_groups(route),
        templates: EditTemplates::of(route),
        cors: route.cors.as_ref().map(|cors| Box::new(CorsPolicy::new(cors))),
        replaced,
        pages,
        resolves_dots: parts.has_rules,
        request_edits: edits(&route.request_headers),
        response_edits: edits(&route.response_headers),
        direct_return,
    }
}

/// A route that tells its application how to name files (Rack::Sendfile).
fn told_of_files(route: &config::Route, sendfile: &config::Sendfile) -> config::Route {
    let mut route = route.clone();
    let names = ["X-Sendfile-Type", "X-Accel-Mapping"];
    let is_own = |name: &str| names.iter().any(|own| own.eq_ignore_ascii_case(name));
    route.request_headers.set.retain(|(name, _)| !is_own(name));
    route.request_headers.remove.extend(names.map(str::to_ascii_lowercase));
    // Values are templates.
    let told = handoff_fields(sendfile)
        .into_iter()
        .map(|(name, value)| (name, value.replace('{', "{{").replace('}', "}}")));
    route.request_headers.set.extend(told);
    route.response_headers.remove.extend(HANDOFF_ANSWERS.map(str::to_owned));
    route
}

/// The route's `path_regex`, if a text refers to a group of it.
fn pattern_of_groups(route: &config::Route) -> Option<Regex> {
    let pattern = route.path_regex.as_deref()?;
    let refers = |text| Template::read(text).is_ok_and(|template| template.groups().next().is_some());
    route.texts().any(|(_, text)| refers(text)).then(|| config::pattern(pattern).ok()).flatten()
}

/// Their texts were checked with the configuration.
fn logged(log: &config::AccessLog) -> Vec<(String, Template)> {
    let read = |(name, text): &(String, String)| Some((name.clone(), Template::read(text).ok()?));
    log.variables.iter().filter_map(read).collect()
}

/// The limits that a route uses. The others would only take memory.
fn limiters(config: &Config, before: Option<&Snapshot>) -> BTreeMap<String, Arc<RateLimiter>> {
    let used = config.routes.iter().flat_map(|route| &route.rate_limits);
    let mut limiters = BTreeMap::new();
    for (name, limit) in used.filter_map(|name| config.rate_limits.get_key_value(name)) {
        limiters.entry(name.clone()).or_insert_with(|| {
            let before = before.and_then(|before| before.limiters.get(name));
            Arc::new(RateLimiter::new(name, limit, before.map(|before| &**before)))
        });
    }
    limiters
}

/// The name of a route, with what decides which requests it takes and what its application gets of them.
fn scope(route: &config::Route) -> String {
    let decisive = (
        (&route.action, &route.hosts, &route.path_prefix, &route.path, &route.path_regex),
        (&route.conditions, &route.not, &route.access, &route.auth, &route.request_headers),
        (&route.strip_prefix, &route.rewrite, &route.add_prefix, &route.host_rewrite),
    );
    let hash = XxHash64::oneshot(0, format!("{decisive:?}").as_bytes());
    format!("{} {hash:016x}", route.name)
}

/// The caches that a route uses.
fn caches(config: &Config, before: Option<&Snapshot>) -> BTreeMap<String, Arc<Store>> {
    let used = config.routes.iter().filter_map(|route| route.cache.as_ref());
    let mut caches = BTreeMap::new();
    for (name, cache) in used.filter_map(|name| config.caches.get_key_value(name)) {
        caches.entry(name.clone()).or_insert_with(|| {
            match before.and_then(|before| before.caches.get(name)) {
                Some(store) if store.can_become(cache) => {
                    store.set(cache);
                    Arc::clone(store)
                }
                _ => Arc::new(Store::new(name, cache)),
            }
        });
    }
    caches
}

/// Metrics are keyed by it, so it must outlive the snapshot. The names come from configurations, so there are few.
fn route_id(name: &str) -> u32 {
    static IDS: Mutex<BTreeMap<String, u32>> = Mutex::new(BTreeMap::new());
    let mut ids = IDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(id) = ids.get(name) {
        return *id;
    }
    let id = ids.len() as u32;
    ids.insert(name.to_owned(), id);
    id
}

/// A text without variables, with its doubled braces as single ones.
fn fixed(value: &str) -> Vec<u8> {
    let parts = Template::read(value).map_or_else(|_| Vec::new(), |template| template.0);
    let text = |part| match part {
        TemplatePart::Text(text) => text.into_bytes(),
        TemplatePart::Variable(_) => Vec::new(),
    };
    parts.into_iter().flat_map(text).collect()
}

fn edits(edits: &config::HeaderEdits) -> Option<FieldEdits> {
    let pairs = |pairs: &[(String, String)]| {
        pairs.iter().map(|(name, value)| (name.clone().into_bytes(), fixed(value))).collect()
    };
    let edits = FieldEdits {
        remove: edits.remove.iter().map(|name| name.clone().into_bytes()).collect(),
        set: pairs(&edits.set),
        add: pairs(&edits.add),
        unless: None,
        cookies: None,
    };
    (!edits.is_empty()).then_some(edits)
}
