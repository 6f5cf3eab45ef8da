//! A place among an endpoint's requests under way: at once, or after a wait in the queue.

use std::time::{Duration, Instant};

use sluice_core::cluster::{InFlight, Kind, NoEndpoint, Pick, Wants};
use sluice_core::error::Reason;
use sluice_core::queue::Refusal;
use tokio::task::yield_now;

use super::Attempt;
use super::Dialer;
use crate::direct::Direct;

/// The reason code of a refused or failed wait.
fn reason(refusal: Refusal) -> Reason {
    match refusal {
        Refusal::Full => Reason::QueueFull,
        Refusal::Hopeless => Reason::NoEndpoint,
    }
}

pub(super) fn try_begin(dialer: &Dialer, attempt: &Attempt<'_>) -> Result<InFlight, NoEndpoint> {
    dialer.with_random(|random| {
        let (kind, hash, exclude) = (attempt.kind, attempt.hash, attempt.tried.as_slice());
        attempt.cluster.begin(Pick { kind, hash, exclude, now_ms: sluice_core::clock::now_ms(), random })
    })
}

pub(super) async fn begin(dialer: &Dialer, attempt: &mut Attempt<'_>) -> Result<InFlight, Reason> {
    // Exchanges that finished by direct return still hold their places, which would distort balancing.
    if attempt.cluster.weighs_load() && dialer.direct().is_some_and(Direct::reap_at_times) {
        yield_now().await;
    }
    let mut begun = try_begin(dialer, attempt);
    // Their places would block this request.
    if matches!(begun, Err(NoEndpoint::Full)) && dialer.direct().is_some_and(Direct::reap) {
        yield_now().await;
        begun = try_begin(dialer, attempt);
    }
    match begun {
        Ok(in_flight) => Ok(in_flight),
        Err(NoEndpoint::Full) if attempt.kind == Kind::Tunnel => Err(Reason::TooManyTunnels),
        Err(NoEndpoint::Full) => wait(dialer, attempt).await,
        Err(_) => Err(Reason::NoEndpoint),
    }
}

/// Waits in the queue for the rest of the time that a request may wait.
async fn wait(dialer: &Dialer, attempt: &mut Attempt<'_>) -> Result<InFlight, Reason> {
    let cluster = attempt.cluster;
    let patience = Duration::from_millis(cluster.config.queue.timeout_ms).saturating_sub(attempt.waited);
    let wants = Wants { hash: attempt.hash, exclude: attempt.tried.clone() };
    let others_wait = cluster.is_waited_for();
    let waiting = cluster.wait(wants, attempt.client).map_err(reason)?;
    // Otherwise nobody would notice the ends that this request waits for.
    if let Some(direct) = dialer.direct() {
        direct.call_in(Some(cluster));
        // While requests are queued, no exchange is armed.
        if !others_wait || cluster.queue_counts().length <= 1 {
            direct.call_others();
        }
    }
    let since = Instant::now();
    attempt.waiting_since = Some(since);
    let outcome = tokio::time::timeout(patience, waiting).await;
    attempt.waiting_since = None;
    attempt.waited += since.elapsed();
    match outcome {
        Ok(Ok(in_flight)) => Ok(in_flight),
        Ok(Err(refusal)) => Err(reason(refusal)),
        Err(_) => {
            cluster.count_queue_timeout();
            Err(Reason::QueueTimeout)
        }
    }
}
