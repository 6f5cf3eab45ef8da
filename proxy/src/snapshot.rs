//! The configuration as the data path uses it: validated, resolved, immutable.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_ebpf::head::{FIELDS_MAX, TEXT_BYTES};

use crate::cluster::Cluster;
use crate::config::{self, Action, Config};
use crate::http::FieldEdits;
use crate::response::ErrorPages;
use crate::router::Router;

/// All that an exchange looks up; an exchange under way keeps the one it began with.
pub(crate) struct Snapshot {
    /// The configuration it was made from.
    pub(crate) config: Config,
    /// Finds the route of a request.
    pub(crate) router: Router,
    /// What to do on each route, by index in `config.routes`.
    pub(crate) routes: Vec<RouteEntry>,
    /// Clusters by name.
    pub(crate) clusters: BTreeMap<String, Arc<Cluster>>,
    /// Bodies of our own answers.
    pub(crate) error_pages: ErrorPages,
}

/// A route made ready.
pub(crate) struct RouteEntry {
    /// Its name.
    pub(crate) name: String,
    /// What it does.
    pub(crate) target: Target,
    /// The route as configured.
    pub(crate) config: config::Route,
    /// Edits of the request head.
    pub(crate) request_edits: Option<FieldEdits>,
    /// Edits of the response head.
    pub(crate) response_edits: Option<FieldEdits>,
    /// Whether answers may go to the client past sluice, just as they come.
    pub(crate) direct_return: bool,
}

/// What a route leads to.
pub(crate) enum Target {
    /// A cluster.
    Cluster(Arc<Cluster>),
    /// An answer of our own; see the route's action.
    Local,
}

impl Snapshot {
    /// Makes a configuration ready for use with these clusters.
    pub(crate) fn new(
        config: Config,
        clusters: BTreeMap<String, Arc<Cluster>>,
        error_pages: ErrorPages,
    ) -> Self {
        let routes = config.routes.iter().map(|route| entry(route, &clusters, config.via)).collect();
        Self { router: Router::new(&config.routes), routes, clusters, error_pages, config }
    }
}

fn entry(route: &config::Route, clusters: &BTreeMap<String, Arc<Cluster>>, via: bool) -> RouteEntry {
    let target = match &route.action {
        Action::Cluster(name) => {
            clusters.get(name).map_or(Target::Local, |cluster| Target::Cluster(Arc::clone(cluster)))
        }
        Action::Redirect { .. } | Action::Respond { .. } => Target::Local,
    };
    let response_edits = edits(&route.response_headers);
    let direct_return = route.direct_return == config::RouteDirect::Auto
        && response_edits.is_none()
        && !via
        && matches!(&target, Target::Cluster(cluster) if takes_heads_as_they_are(&cluster.config));
    RouteEntry {
        name: route.name.clone(),
        target,
        config: route.clone(),
        request_edits: edits(&route.request_headers),
        response_edits,
        direct_return,
    }
}

/// Whether every head that the program accepts is one that we would.
fn takes_heads_as_they_are(cluster: &config::Cluster) -> bool {
    cluster.endpoint_header.is_none()
        && cluster.response_head_bytes_max >= TEXT_BYTES
        && cluster.response_headers_max as u64 >= FIELDS_MAX
}

fn edits(edits: &config::HeaderEdits) -> Option<FieldEdits> {
    let pairs = |pairs: &[(String, String)]| {
        pairs.iter().map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes())).collect()
    };
    let edits = FieldEdits {
        remove: edits.remove.iter().map(|name| name.clone().into_bytes()).collect(),
        set: pairs(&edits.set),
        add: pairs(&edits.add),
    };
    (!edits.is_empty()).then_some(edits)
}
