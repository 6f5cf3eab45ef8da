//! Active health checks of one cluster, on the control plane's runtime.
//!
//! Checks are few and small, so they use plain sockets and not a worker's ring. Passive ejection is elsewhere: the data
//! path records it at the endpoint.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluice_config::HealthCheck;
use sluice_core::cluster::{Cluster, Endpoint, LastCheck};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

pub(crate) mod check;
mod grpc;
#[cfg(test)]
pub(crate) mod tests;
mod threshold;

use check::{CheckError, Success};
use threshold::Threshold;

/// Maximum number of concurrent checks of one cluster; limits the descriptors they take from live traffic.
const CHECKS_AT_ONCE_MAX: usize = 128;

/// Checks are spread over this fraction of the interval, so that they do not arrive in a burst.
const SPREAD_DIVISOR: u32 = 4;

/// Checks every endpoint at once and then every `interval_ms`, without end; returns only if the cluster has no
/// `health_check`.
///
/// `clock` is the process's monotonic clock in milliseconds. Needs a tokio runtime with IO and time.
pub async fn run(cluster: Arc<Cluster>, clock: impl Fn() -> u64) {
    let Some(config) = cluster.config.health_check.clone() else {
        return;
    };
    let mut rounds = Rounds::new(Arc::clone(&cluster), config);
    let period = Duration::from_millis(rounds.config.interval_ms.max(1));
    let mut ticks = interval(period);
    // Rounds missed by slow checks must not be made up for in a burst.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut spread = Duration::ZERO;
    loop {
        ticks.tick().await;
        rounds.round(spread, &clock).await;
        spread = period / SPREAD_DIVISOR;
    }
}

/// State of the checks between rounds.
struct Rounds {
    cluster: Arc<Cluster>,
    config: Arc<HealthCheck>,
    thresholds: HashMap<u32, Threshold>,
    permits: Arc<Semaphore>,
}

impl Rounds {
    fn new(cluster: Arc<Cluster>, config: HealthCheck) -> Rounds {
        Rounds {
            cluster,
            config: Arc::new(config),
            thresholds: HashMap::new(),
            permits: Arc::new(Semaphore::new(CHECKS_AT_ONCE_MAX)),
        }
    }

    /// Checks every endpoint once, each starting at random within `spread`.
    async fn round(&mut self, spread: Duration, clock: &impl Fn() -> u64) {
        let endpoints = self.cluster.endpoints().to_vec();
        self.thresholds.retain(|id, _| endpoints.iter().any(|endpoint| endpoint.id == *id));
        let mut checks = JoinSet::new();
        for endpoint in endpoints {
            checks.spawn(check_later(
                Arc::clone(&self.cluster),
                endpoint,
                Arc::clone(&self.config),
                Arc::clone(&self.permits),
                Instant::now() + spread.mul_f64(fastrand::f64()),
            ));
        }
        while let Some(ended) = checks.join_next().await {
            match ended {
                Ok((endpoint, result)) => self.record(&endpoint, result, clock()),
                Err(error) => {
                    tracing::error!(cluster = self.cluster.name, %error, "a health check task failed")
                }
            }
        }
    }

    fn record(&mut self, endpoint: &Endpoint, result: Result<Success, CheckError>, now_ms: u64) {
        let outcome = match &result {
            Ok(passed) => passed.to_string(),
            Err(error) => error.to_string(),
        };
        let success = result.is_ok();
        let began = || Threshold::new(endpoint.active_health());
        let threshold = self.thresholds.entry(endpoint.id).or_insert_with(began);
        let flip = threshold.observe(success, &self.config);
        endpoint.set_last_check(LastCheck { outcome: outcome.clone(), success, at_ms: now_ms });
        let Some(healthy) = flip else { return };
        endpoint.set_active_health(healthy, unix_s());
        let (cluster, endpoint) = (&self.cluster.name, &endpoint.label);
        if healthy {
            tracing::info!(cluster, endpoint, reason = outcome, "endpoint is healthy again");
        } else {
            tracing::warn!(cluster, endpoint, reason = outcome, "endpoint is unhealthy");
        }
    }
}

async fn check_later(
    cluster: Arc<Cluster>,
    endpoint: Arc<Endpoint>,
    config: Arc<HealthCheck>,
    permits: Arc<Semaphore>,
    at: Instant,
) -> (Arc<Endpoint>, Result<Success, CheckError>) {
    sleep(at.saturating_duration_since(Instant::now())).await;
    let permit = permits.acquire().await;
    let result = check::check(&endpoint, cluster.tls().map(AsRef::as_ref), &config).await;
    drop(permit);
    (endpoint, result)
}

fn unix_s() -> u64 {
    // A clock before 1970 is shown as 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
