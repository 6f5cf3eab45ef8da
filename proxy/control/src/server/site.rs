//! The current state, and how it is replaced without affecting requests: the snapshot, the clusters with their tasks,
//! the listeners.

use crate::server::ReloadError;
use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use sluice_config::{self as config, Config};
use sluice_core::clock;
use sluice_core::clock::{now_ms, now_ns};
use sluice_core::cluster::{Cluster, Endpoint, Seed};
use sluice_core::tls::upstream::Refreshed;
use sluice_core::tls::{Planned, Terminators};
use sluice_engine::bypass;
use sluice_engine::equipment::Equipment;
use sluice_engine::snapshot::{Live, Snapshot};
use sluice_engine::thread::Command;
use sluice_kernel::accept::Chooser;
use sluice_net::listener::HeldSockets;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::AbortHandle;

use super::changes::Changes;
use super::clusters::{Clusters, Resolvers};
use super::fixed;
use super::listeners::Listeners;
use super::quic;
use super::services::Attached;
use crate::acme::Acme;
use crate::admin::{SharedToken, Token};
use crate::handover::{EndpointExperience, Estate, Unhealthy};
use crate::resolve::Resolver;
use crate::{advice, authority, discovery, health, networks, resolve, state_file};

/// How often a removed cluster is checked for its last exchange.
const RETIRE_CHECK: Duration = Duration::from_millis(200);

/// The control plane's handle on everything that a configuration creates.
pub(super) struct Site {
    pub(super) live: Live,
    clusters: RefCell<BTreeMap<String, Managed>>,
    /// The configuration file, and what was deployed in addition.
    file: RefCell<Config>,
    attached: RefCell<Attached>,
    pub(super) listeners: Listeners,
    /// Issues certificates.
    pub(super) acme: Arc<Acme>,
    state_files: RefCell<Option<AbortHandle>>,
    network_lists: RefCell<Option<AbortHandle>>,
    /// Running changes, which prevent an upgrade.
    pub(super) changes: Changes,
    /// Held while a configuration is applied.
    turn: Mutex<()>,
    admin_token: Option<SharedToken>,
}

/// A cluster and the tasks that manage it.
pub(super) struct Managed {
    cluster: Arc<Cluster>,
    tasks: Vec<AbortHandle>,
    /// The endpoints that its source has.
    found: Option<watch::Receiver<Vec<config::Endpoint>>>,
}

/// The result of applying a configuration.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Deviations from the configuration, a sentence each.
    pub(crate) notes: Vec<String>,
}

/// Endpoints that were found, by cluster.
type Found = BTreeMap<String, Vec<config::Endpoint>>;

/// A cluster of a new configuration.
enum Next {
    /// Unchanged, except perhaps for the content of files that it names.
    Same(Arc<Cluster>, Option<Refreshed>),
    /// Built from another one, whose endpoints continue in it.
    Changed(Arc<Cluster>, Resolver, Vec<Seed>),
    New(Arc<Cluster>, Resolver),
}

impl Next {
    fn cluster(&self) -> &Arc<Cluster> {
        match self {
            Self::Same(cluster, _) | Self::Changed(cluster, ..) | Self::New(cluster, _) => cluster,
        }
    }
}

impl Managed {
    pub(super) fn look_after(cluster: Arc<Cluster>, resolver: Resolver) -> Self {
        let mut tasks = Vec::new();
        let found = cluster.config.discover.as_ref().map(|_| {
            let known = resolver.found().to_vec();
            let (sender, receiver) = watch::channel(known.clone());
            cluster.discovery().begin(known.len());
            let finding = discovery::run(Arc::clone(&cluster), known, sender);
            tasks.push(tokio::spawn(finding).abort_handle());
            receiver
        });
        let resolving = resolve::run(Arc::clone(&cluster), resolver, found.clone());
        tasks.push(tokio::spawn(resolving).abort_handle());
        if cluster.config.health_check.is_some() {
            tasks.push(tokio::spawn(health::run(Arc::clone(&cluster), clock::now_ms)).abort_handle());
        }
        Self { cluster, tasks, found }
    }

    pub(super) fn stop(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Site {
    #[expect(clippy::too_many_arguments, reason = "called once, with everything the start has prepared")]
    pub(super) fn new(
        live: Live,
        listeners: Vec<HeldSockets>,
        workers: (Vec<mpsc::UnboundedSender<Command>>, Option<Arc<Chooser>>),
        bypass: Option<Arc<bypass::Control>>,
        terminators: Arc<Terminators>,
        (file, attached, acme): (Config, Attached, Arc<Acme>),
    ) -> Self {
        let listeners = Listeners::new(&file.listeners, listeners, workers, bypass, terminators);
        Self {
            live,
            clusters: RefCell::default(),
            file: RefCell::new(file),
            attached: RefCell::new(attached),
            listeners,
            acme,
            state_files: RefCell::default(),
            network_lists: RefCell::default(),
            changes: Changes::default(),
            admin_token: None,
            turn: Mutex::default(),
        }
    }

    /// Makes reloads read the admin listener's token again.
    pub(super) fn with_admin_token(self, admin_token: Option<SharedToken>) -> Self {
        Self { admin_token, ..self }
    }

    /// Reads the token again; the current one stays if that fails, because only root may be able to read the file.
    fn renew_admin_token(&self, config: &Config) -> Option<String> {
        let (shared, file) = self.admin_token.as_ref().zip(config.admin_token_file.as_deref())?;
        match Token::read(file) {
            Ok(token) => {
                shared.store(Arc::new(token));
                None
            }
            Err(error) => Some(format!("admin_token_file: {error}; keeping the current token")),
        }
    }

    /// Starts managing the clusters that exist at startup. Needs the control plane's runtime.
    pub(super) fn look_after(&self, resolvers: Resolvers) {
        let managed = resolvers
            .into_iter()
            .map(|(cluster, resolver)| (cluster.name.clone(), Managed::look_after(cluster, resolver)));
        self.clusters.borrow_mut().extend(managed);
        self.write_state_files();
        self.watch_networks();
    }

    /// Watches the files of networks of the current configuration.
    fn watch_networks(&self) {
        let lists: Vec<_> = self.live.load().equipment.networks.values().cloned().collect();
        let task = (!lists.is_empty()).then(|| tokio::spawn(networks::watch(lists)).abort_handle());
        if let Some(before) = self.network_lists.replace(task) {
            before.abort();
        }
    }

    fn write_state_files(&self) {
        let clusters: Vec<_> = self.live.load().clusters.values().cloned().collect();
        let task = tokio::spawn(state_file::run(clusters)).abort_handle();
        if let Some(before) = self.state_files.replace(Some(task)) {
            before.abort();
        }
    }

    /// Applies a configuration: new exchanges use it, running ones finish with the one they started with. Unchanged
    /// listeners keep their sockets; new ones are bound before old ones close. Unchanged endpoints keep their
    /// connections and state.
    ///
    /// # Errors
    /// Why it cannot be applied; nothing has changed then.
    pub(super) async fn apply(&self, mut config: Config) -> Result<Applied, ReloadError> {
        let _turn = self.turn.lock().await;
        let old = self.live.load_full();
        let mut notes = fixed::keep(&old.config, &mut config);
        let attached = self.attached.borrow().clone();
        attached.check(&config)?;
        let equipment = Equipment::load(&config, Some(&old.equipment), authority::start)?;
        let plan = self.listeners.plan(&config.listeners);
        let certified = attached.read_certificates(&config).await?;
        let tls = self.listeners.plan_tls(&certified.listeners).await?;
        quic::prepare(&config).map_err(|error| error.to_string())?;
        let opened = self.listeners.open(&plan, &tls)?;
        let next = next_clusters(&old, &self.found(), &config).await?;
        // This changes what current listeners serve, so it is the last step that can fail.
        self.acme.prepare_reload(&certified, tls.by_name()).await?;
        // No step fails from here on.
        notes.extend(self.renew_admin_token(&config));
        let clusters: Clusters =
            next.iter().map(|next| (next.cluster().name.clone(), Arc::clone(next.cluster()))).collect();
        for next in &next {
            let cluster = next.cluster();
            if cluster.forget_adjustments() {
                let name = &cluster.name;
                notes.push(format!(
                    "clusters.{name}: its endpoints are reset to the file: weights \
                                    restored, none disabled"
                ));
            }
            if let Next::Changed(cluster, _, seeds) = next {
                take_over(cluster, seeds.clone());
            }
        }
        let snapshot = Arc::new(attached.snapshot(&config, clusters, equipment, Some(&old)));
        snapshot.start_caches();
        self.live.store(Arc::clone(&snapshot));
        old.retire_caches(&snapshot);
        snapshot.spare_trusted();
        self.file.replace(config);
        let closing = self.listeners.switch(plan, &tls, opened);
        self.switch_clusters(next);
        self.write_state_files();
        self.watch_networks();
        closing.closed().await;
        Ok(Applied { notes })
    }

    /// The endpoints that were found, by cluster.
    fn found(&self) -> Found {
        let clusters = self.clusters.borrow();
        let of = |(name, managed): (&String, &Managed)| {
            Some((name.clone(), managed.found.as_ref()?.borrow().clone()))
        };
        clusters.iter().filter_map(of).collect()
    }

    /// The configuration file.
    pub(super) fn file(&self) -> Ref<'_, Config> {
        self.file.borrow()
    }

    /// A cluster of the configuration file.
    pub(super) fn cluster_of_the_file(&self, name: &str) -> Option<Arc<Cluster>> {
        let of_a_service = self.attached.borrow().has_cluster(name);
        self.live.load().clusters.get(name).filter(|_| !of_a_service).cloned()
    }

    /// Applies deployed services in addition to the configuration file, in one step.
    ///
    /// # Errors
    /// Why they conflict with it; nothing has changed then.
    pub(super) async fn attach(&self, attached: Attached) -> Result<(), ReloadError> {
        let _turn = self.turn.lock().await;
        let file = self.file().clone();
        attached.check(&file)?;
        let certificates_change = !attached.has_same_certificates(&self.attached.borrow());
        let tls = match certificates_change {
            true => Some(self.plan_certificates(&attached, &file).await?),
            false => None,
        };
        // No step fails from here on.
        let old = self.live.load_full();
        let before = self.attached.replace(attached.clone());
        let of_the_file = |(name, _): &(&String, _)| !before.has_cluster(name);
        let clusters = old.clusters.iter().filter(of_the_file);
        let clusters = clusters.map(|(name, cluster)| (name.clone(), Arc::clone(cluster))).collect();
        let next = attached.snapshot(&file, clusters, old.equipment.clone(), Some(&old));
        for said in advice::newly_shadowed(&old.config.routes, &next.config.routes) {
            tracing::warn!("a deployed service takes requests from a rule of the file: {said}");
        }
        next.start_caches();
        let next = Arc::new(next);
        self.live.store(Arc::clone(&next));
        old.retire_caches(&next);
        tls.iter().for_each(|tls| self.listeners.terminators.switch(tls));
        Ok(())
    }

    /// The certificates of the listeners with these services.
    async fn plan_certificates(&self, attached: &Attached, file: &Config) -> Result<Planned, ReloadError> {
        let certified = attached.read_certificates(file).await?;
        let tls = self.listeners.plan_tls_again(&certified.listeners).await?;
        self.acme.prepare_reload(&certified, tls.by_name()).await?;
        Ok(tls)
    }

    /// Everything that a new process needs to continue.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn estate(&self) -> io::Result<Estate> {
        let mut estate = Estate { sockets: self.listeners.pass()?, ..Estate::default() };
        let live = self.live.load();
        estate.found = self.found();
        estate.bans = live.bans.list(now_ms());
        estate.clients = live.limiters.values().flat_map(|limiter| limiter.known_clients(now_ns())).collect();
        for cluster in live.clusters.values() {
            let endpoints = cluster.endpoints();
            let unhealthy = endpoints.iter().filter(|endpoint| !endpoint.active_health());
            estate.unhealthy.extend(unhealthy.map(|endpoint| Unhealthy {
                cluster: cluster.name.clone(),
                endpoint: endpoint.label.clone(),
                since_unix_s: endpoint.health_since_unix_s(),
            }));
            let known = |endpoint: &Arc<Endpoint>| {
                let experience = endpoint.joinable.experience(now_ms())?;
                let (cluster, endpoint) = (cluster.name.clone(), endpoint.label.clone());
                Some(EndpointExperience { cluster, endpoint, experience })
            };
            estate.experienced.extend(endpoints.iter().filter_map(known));
        }
        Ok(estate)
    }

    fn switch_clusters(&self, next: Vec<Next>) {
        let mut managed = self.clusters.borrow_mut();
        let mut gone = std::mem::take(&mut *managed);
        for next in next {
            let name = next.cluster().name.clone();
            let before = gone.remove(&name);
            let now = match (next, before) {
                (Next::Same(cluster, refreshed), before) => {
                    cluster.tls().zip(refreshed).into_iter().for_each(|(tls, refreshed)| tls.put(refreshed));
                    match before {
                        Some(before) => before,
                        None => continue,
                    }
                }
                (Next::Changed(cluster, resolver, _) | Next::New(cluster, resolver), before) => {
                    before.iter().for_each(Managed::stop);
                    Managed::look_after(cluster, resolver)
                }
            };
            managed.insert(name, now);
        }
        for gone in gone.into_values() {
            gone.stop();
            tokio::spawn(retire(gone.cluster));
        }
    }
}

/// Builds the clusters of a new configuration and looks up their names; applies nothing yet.
async fn next_clusters(old: &Snapshot, found: &Found, config: &Config) -> Result<Vec<Next>, ReloadError> {
    let mut next = Vec::new();
    let mut first = find_first(old, found, config).await;
    let listeners = &config.listeners;
    for (name, config) in &config.clusters {
        let before = old.clusters.get(name);
        if let Some(same) = before.filter(|before| before.config == *config) {
            let refreshed = same.tls().map_or(Ok(None), |tls| tls.refreshed())?;
            next.push(Next::Same(Arc::clone(same), refreshed));
            continue;
        }
        let mut resolver = Resolver::new(name, config).avoiding(listeners);
        resolver.set_found(first.remove(name).unwrap_or_default());
        before.iter().for_each(|before| resolver.remember(&before.endpoints()));
        // The system's resolver blocks.
        let resolved = tokio::task::spawn_blocking(move || (resolver.resolve(), resolver)).await;
        let (seeds, resolver) =
            resolved.map_err(|error| format!("clusters.{name}: the name lookup task failed: {error}"))?;
        next.push(match before {
            Some(before) => {
                Next::Changed(Arc::new(before.reconfigured(config.clone()).with_tls()?), resolver, seeds)
            }
            None => {
                let cluster = Arc::new(Cluster::new(name.clone(), config.clone(), seeds).with_tls()?);
                state_file::restore(&[Arc::clone(&cluster)]);
                Next::New(cluster, resolver)
            }
        });
    }
    Ok(next)
}

/// What the sources of endpoints have. All that are new are asked at the same time; for the others, and until a new one has
/// answered, what was found before is good.
async fn find_first(old: &Snapshot, found: &Found, config: &Config) -> Found {
    let asking = config.clusters.iter().map(async |(name, cluster)| {
        let discover = cluster.discover.as_ref()?;
        let known = found.get(name).cloned().unwrap_or_default();
        let before = old.clusters.get(name).and_then(|before| before.config.discover.as_ref());
        let is_same = before.is_some_and(|before| before.source() == discover.source());
        let list = if is_same { known } else { discovery::first(name, discover, known).await };
        Some((name.clone(), list))
    });
    futures_util::future::join_all(asking).await.into_iter().flatten().collect()
}

/// Applies a cluster's new configuration.
fn take_over(cluster: &Cluster, seeds: Vec<Seed>) {
    cluster.replace_endpoints(seeds);
    cluster.apply_queue_rules();
    if cluster.config.health_check.is_none() {
        // Without checks, unhealthy endpoints would never become healthy again.
        for endpoint in cluster.endpoints().iter() {
            endpoint.set_active_health(true, 0);
        }
    }
}

/// Closes the idle connections of a removed cluster once no exchange uses it.
async fn retire(cluster: Arc<Cluster>) {
    while Arc::strong_count(&cluster) > 1 {
        tokio::time::sleep(RETIRE_CHECK).await;
    }
    cluster.endpoints().iter().for_each(|endpoint| endpoint.drain());
}
