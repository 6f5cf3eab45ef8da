//! Tells the fleet once a second what the shared rate limits of this process have served, and counts what others have. Exact
//! limits get a judge instead, which asks Redis for each request.

use std::sync::Arc;
use std::time::Duration;

use sluice_config::{Config, Sharing};
use sluice_core::clock::now_ns;
use sluice_core::rate_limit::{RateJudge, RateLimiter};
use sluice_engine::snapshot::{Live, Snapshot};
use tokio::time::MissedTickBehavior;

use crate::fleet::{CLIENTS_MAX, Fleet, RateExchange, RateReport};
use crate::store;

/// Between two reports. The longer, the more a client may send before all members know.
const PERIOD: Duration = Duration::from_secs(1);

/// Exchanges reports without end. Costs nothing as long as no limit is shared.
pub(super) async fn run(live: Live, fleet: &Fleet) {
    let (mut exchange, mut judge) = (RateExchange::default(), ExactJudge::default());
    let mut period = tokio::time::interval(PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        period.tick().await;
        let snapshot = live.load_full();
        if snapshot.limiters.values().all(|limiter| limiter.config.shared == Sharing::Alone) {
            continue;
        }
        let report = taken(&snapshot);
        // Without the store, each member limits by what it knows.
        if fleet.trouble().is_some() || !fleet.has_seen() {
            continue;
        }
        let seed = exchange.seed(&fleet.keys());
        let seed = match seed {
            Ok(seed) => seed,
            Err(made) => {
                let _ = fleet.try_commit(&made).await;
                continue;
            }
        };
        let shared = snapshot.limiters.values().filter(|limiter| limiter.config.shared != Sharing::Alone);
        shared.for_each(|limiter| limiter.set_seed(seed));
        judge.give(&snapshot);
        let news = exchange.news(fleet.name(), &fleet.keys());
        news.iter().for_each(|report| count(&snapshot, report));
        if !report.0.is_empty() {
            let _ = fleet.try_commit(&RateExchange::report(fleet.name(), &report)).await;
        }
    }
}

fn taken(snapshot: &Snapshot) -> RateReport {
    let served =
        approximate(snapshot).map(|limiter| (limiter.name.clone(), limiter.take_served(CLIENTS_MAX)));
    RateReport(served.filter(|(_, served)| !served.is_empty()).collect())
}

fn count(snapshot: &Snapshot, report: &RateReport) {
    for (name, served) in &report.0 {
        let limiter = approximate(snapshot).find(|limiter| limiter.name == *name);
        limiter.into_iter().for_each(|limiter| limiter.add_served(served, now_ns()));
    }
}

fn approximate(snapshot: &Snapshot) -> impl Iterator<Item = &Arc<RateLimiter>> {
    snapshot.limiters.values().filter(|limiter| limiter.config.shared == Sharing::Approximate)
}

/// The judge of exact limits, which is started when there is the first.
#[derive(Default)]
struct ExactJudge {
    judge: Option<Arc<RateJudge>>,
    has_failed: bool,
}

impl ExactJudge {
    /// Gives it to the exact limits.
    fn give(&mut self, snapshot: &Snapshot) {
        for limiter in snapshot.limiters.values().filter(|limiter| limiter.is_exact()) {
            if self.judge.is_none() {
                self.start(&snapshot.config);
            }
            limiter.set_judge(self.judge.as_ref());
        }
    }

    /// Tries again each time, because a file may be mended; a failure is said once.
    fn start(&mut self, config: &Config) {
        let Some(redis) = config.store.as_ref().and_then(|store| store.redis.as_ref()) else { return };
        match store::start_rates(redis) {
            Ok(judge) => (self.judge, self.has_failed) = (Some(judge), false),
            Err(error) if !std::mem::replace(&mut self.has_failed, true) => {
                tracing::warn!(%error, "exact rate limits count for this host alone");
            }
            Err(_) => {}
        }
    }
}
