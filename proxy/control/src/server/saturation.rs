//! How long endpoints have had all their threads busy, from what sluice can see without privileges: connections that
//! wait in an endpoint's accept queue, or as many requests at it as it may have.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_core::cluster::{Cluster, Endpoint, EndpointAddress};
use tokio::time::MissedTickBehavior;

use super::accept_queue::AcceptQueues;

/// Time between two looks. A share over minutes is as exact as its number of looks; a look at idle endpoints costs
/// nothing, one at others some tens of microseconds.
const INTERVAL: Duration = Duration::from_secs(1);

/// Looks at the endpoints of `clusters` once a second, without end. Needs a tokio runtime.
pub(super) async fn watch(clusters: impl Fn() -> Vec<Arc<Cluster>>) -> Infallible {
    let mut tick = tokio::time::interval(INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = Instant::now();
    loop {
        tick.tick().await;
        let now = Instant::now();
        look(&clusters(), now.saturating_duration_since(std::mem::replace(&mut last, now)));
    }
}

/// Adds `since`, the time since the last look, to each endpoint that is saturated now.
fn look(clusters: &[Arc<Cluster>], since: Duration) {
    let mut queues = None;
    for cluster in clusters {
        for endpoint in cluster.endpoints().iter().filter(|endpoint| endpoint.in_flight() > 0) {
            let queues = queues.get_or_insert_with(AcceptQueues::read);
            if is_saturated(endpoint, queues) {
                endpoint.add_saturated(since);
            }
        }
    }
}

fn is_saturated(endpoint: &Endpoint, queues: &AcceptQueues) -> bool {
    let waiting = match &endpoint.address {
        EndpointAddress::Ip(address) => queues.at(*address).unwrap_or(0),
        EndpointAddress::Unix(_) => 0,
    };
    waiting > 0 || endpoint.in_flight() >= endpoint.limit_now()
}
