//! Compiles a service to routes and clusters, so that it uses the existing routing, balancing, checks, queue and
//! retries.
//!
//! What a [`Route`] and a [`Cluster`] cannot express is in `ServiceEntry`; see the module's page.

use std::collections::BTreeMap;

use sluice_config::{
    Action, Balance, Buffering, CheckProtocol, Cluster, Ejection, Endpoint, HealthCheck, MaxInFlight, Queue,
    Route, Switch,
};

use super::duration::GoDuration;
use super::error::ServiceError;
use super::model::Service;
use super::options::{HealthCheckConfig, InFlightLimit, TargetOptions};
use super::target;

/// The maximum of a timeout, used where kamal-proxy has none.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A service as configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Compiled {
    /// One route for each path prefix, two if both any host and some hosts are served.
    pub routes: Vec<Route>,
    /// Clusters by name; the name starts with the service's.
    pub clusters: BTreeMap<String, Cluster>,
}

/// One of a service's groups of targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// The active targets.
    Active,
    /// The readers of the active targets.
    ActiveReaders,
    /// The targets of the rollout.
    Rollout,
    /// The readers of the rollout.
    RolloutReaders,
}

impl Group {
    /// All groups.
    pub const ALL: [Group; 4] = [Group::Active, Group::ActiveReaders, Group::Rollout, Group::RolloutReaders];

    /// The name of a service's cluster for these targets.
    pub fn cluster(self, service: &str) -> String {
        match self {
            Group::Active => service.to_owned(),
            Group::ActiveReaders => format!("{service} readers"),
            Group::Rollout => format!("{service} rollout"),
            Group::RolloutReaders => format!("{service} rollout readers"),
        }
    }

    /// The targets of the group.
    pub fn targets(self, service: &Service) -> &[String] {
        match self {
            Group::Active => &service.active_targets,
            Group::ActiveReaders => &service.active_readers,
            Group::Rollout => &service.rollout_targets,
            Group::RolloutReaders => &service.rollout_readers,
        }
    }

    /// The number of targets that are deployed together with the group, including readers.
    fn beside(self, service: &Service) -> usize {
        match self {
            Group::Active | Group::ActiveReaders => {
                service.active_targets.len() + service.active_readers.len()
            }
            Group::Rollout | Group::RolloutReaders => {
                service.rollout_targets.len() + service.rollout_readers.len()
            }
        }
    }
}

/// The routes and clusters of a service.
///
/// # Errors
/// When a target or an option cannot be used.
pub fn compile(service: &Service) -> Result<Compiled, ServiceError> {
    let mut clusters = BTreeMap::new();
    for group in Group::ALL {
        if !group.targets(service).is_empty() {
            clusters.insert(group.cluster(&service.name), cluster(service, group)?);
        }
    }
    Ok(Compiled { routes: routes(service), clusters })
}

/// The cluster of a group.
///
/// # Errors
/// When a target or an option cannot be used.
pub fn cluster(service: &Service, group: Group) -> Result<Cluster, ServiceError> {
    let options = &service.target_options;
    // A single target is not checked once it serves: there is no other target to use instead.
    let checked = group.beside(service) > 1;
    Ok(Cluster {
        endpoints: distinct(target::endpoints(group.targets(service))?),
        balance: Balance::RoundRobin,
        health_check: checked.then(|| health_check(&options.health_check_config)),
        ejection: Ejection { consecutive_failures: 0, ..Ejection::default() },
        fail_open: !checked,
        response_timeout_ms: timeout_ms(options.response_timeout),
        body_idle_timeout_ms: DAY_MS,
        tunnel_idle_timeout_ms: DAY_MS,
        max_in_flight: limit(options),
        queue: Queue { max_length: queue_size(options), ..Queue::default() },
        ..Cluster::default()
    })
}

/// A target that is named twice becomes one endpoint of twice the weight.
fn distinct(endpoints: Vec<Endpoint>) -> Vec<Endpoint> {
    let mut distinct: Vec<Endpoint> = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        match distinct.iter_mut().find(|known| known.address == endpoint.address) {
            Some(known) => known.weight += 1,
            None => distinct.push(endpoint),
        }
    }
    distinct
}

/// How a service's targets are checked, during a deploy and, if there are several, afterwards.
pub fn health_check(config: &HealthCheckConfig) -> HealthCheck {
    let interval_ms = config.interval.as_millis().clamp(10, DAY_MS);
    HealthCheck {
        protocol: CheckProtocol::Http,
        path: format!("/{}", config.path.trim_start_matches('/')),
        host: (!config.host.is_empty()).then(|| config.host.clone()),
        port: (config.port != 0).then_some(config.port),
        interval_ms,
        timeout_ms: config.timeout.as_millis().clamp(1, DAY_MS),
        // One check decides, both ways, as in kamal-proxy.
        healthy_after: 1,
        unhealthy_after: 1,
        expected_statuses: vec![(200, 299)],
        expected_body: None,
        grpc_service: None,
    }
}

fn timeout_ms(timeout: GoDuration) -> u64 {
    match timeout.as_millis() {
        // Go's notation for no timeout.
        0 => DAY_MS,
        some => some.min(DAY_MS),
    }
}

fn queue_size(options: &TargetOptions) -> usize {
    options.queue_size.and_then(|size| size.try_into().ok()).unwrap_or(Queue::default().max_length)
}

fn limit(options: &TargetOptions) -> MaxInFlight {
    match options.max_in_flight {
        None => MaxInFlight::Off,
        Some(InFlightLimit::Auto) => MaxInFlight::Auto,
        Some(InFlightLimit::Fixed(count)) => MaxInFlight::Fixed(count),
    }
}

fn buffering(options: &TargetOptions) -> Buffering {
    let switch = |on| if on { Switch::On } else { Switch::Off };
    Buffering {
        buffer_requests: switch(options.buffer_requests),
        buffer_responses: switch(options.buffer_responses),
        buffer_memory_bytes: usize::try_from(options.max_memory_buffer_size).unwrap_or(usize::MAX),
        request_body_bytes_max: options.max_request_body_size,
        response_body_bytes_max: options.max_response_body_size,
    }
}

fn routes(service: &Service) -> Vec<Route> {
    let options = &service.options;
    let any = options.hosts.iter().any(String::is_empty);
    let named: Vec<String> =
        options.hosts.iter().filter(|host| !host.is_empty()).map(|host| host.to_ascii_lowercase()).collect();
    let mut routes = Vec::new();
    for prefix in &options.path_prefixes {
        let name = route_name(&service.name, prefix);
        let mut add = |name: String, hosts: Vec<String>| {
            let mut route = Route::new(&name, Action::Cluster(Group::Active.cluster(&service.name)));
            route.hosts = hosts;
            route.path_prefix.clone_from(prefix);
            route.buffering = buffering(&service.target_options);
            route.strip_prefix = options.strip_prefix && prefix != "/";
            routes.push(route);
        };
        if !named.is_empty() {
            add(name.clone(), named.clone());
        }
        if any {
            add(if named.is_empty() { name } else { format!("{name} (any host)") }, Vec::new());
        }
    }
    routes
}

fn route_name(service: &str, prefix: &str) -> String {
    if prefix == "/" { service.to_owned() } else { format!("{service} {prefix}") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::service::options::ServiceOptions;

    fn service(json: serde_json::Value) -> Service {
        let mut service: Service = serde_json::from_value(json).unwrap();
        service.options.normalize();
        service
    }

    #[test]
    fn the_smallest_service_is_one_route_and_one_cluster() {
        let compiled =
            compile(&service(serde_json::json!({"name": "web", "active_targets": ["web-1:3000"]}))).unwrap();
        let [route] = compiled.routes.as_slice() else { panic!("{:?}", compiled.routes) };
        assert_eq!(
            (route.name.as_str(), route.path_prefix.as_str(), route.strip_prefix),
            ("web", "/", false)
        );
        assert!(route.hosts.is_empty());
        let cluster = &compiled.clusters["web"];
        assert_eq!(compiled.clusters.len(), 1);
        assert_eq!(cluster.endpoints[0].address.to_string(), "web-1:3000");
        assert_eq!((cluster.response_timeout_ms, cluster.fail_open), (30_000, true));
        assert_eq!((&cluster.health_check, cluster.max_in_flight), (&None, MaxInFlight::Off));
    }

    #[test]
    fn several_targets_are_checked_and_bounded() {
        let compiled = compile(&service(serde_json::json!({
            "name": "web",
            "active_targets": ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:1"], "active_readers": ["127.0.0.1:3"],
            "target_options": {
                "max_in_flight": 4, "queue_size": 7, "response_timeout": "0s",
                "health_check_config": {"path": "web/index.html", "port": 8080, "interval": "2s", "host": "h"},
            },
        })))
        .unwrap();
        let cluster = &compiled.clusters["web"];
        let check = cluster.health_check.clone().unwrap();
        assert_eq!(
            (check.path.as_str(), check.port, check.interval_ms),
            ("/web/index.html", Some(8080), 2000)
        );
        assert_eq!((check.host.as_deref(), check.timeout_ms), (Some("h"), 5000));
        assert_eq!((cluster.max_in_flight, cluster.queue.max_length), (MaxInFlight::Fixed(4), 7));
        assert_eq!((cluster.response_timeout_ms, cluster.fail_open), (DAY_MS, false));
        let weights: Vec<u32> = cluster.endpoints.iter().map(|endpoint| endpoint.weight).collect();
        assert_eq!(weights, [2, 1]);
        assert!(compiled.clusters["web readers"].health_check.is_some());
    }

    #[test]
    fn a_route_for_each_prefix_and_kind_of_host() {
        let hosts = vec!["A.test".to_owned(), String::new()];
        let path_prefixes = vec!["/".to_owned(), "api/".to_owned()];
        let options = ServiceOptions { hosts, path_prefixes, ..ServiceOptions::default() };
        let mut service = Service { name: "w".to_owned(), options, ..Service::default() };
        service.options.normalize();
        let routes = compile(&service).unwrap().routes;
        let shown: Vec<_> = routes
            .iter()
            .map(|route| {
                (route.name.as_str(), route.hosts.join(","), route.path_prefix.as_str(), route.strip_prefix)
            })
            .collect();
        let wanted = [
            ("w", "a.test".to_owned(), "/", false),
            ("w (any host)", String::new(), "/", false),
            ("w /api", "a.test".to_owned(), "/api", true),
            ("w /api (any host)", String::new(), "/api", true),
        ];
        assert_eq!(shown, wanted);
    }
}
