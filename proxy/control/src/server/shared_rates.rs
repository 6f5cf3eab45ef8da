//! Tells the fleet once a second what the shared rate limits of this process have served, and counts what others have.

use std::time::Duration;

use sluice_core::clock::now_ns;
use sluice_engine::snapshot::{Live, Snapshot};

use crate::fleet::{CLIENTS_MAX, Fleet, RateExchange, RateReport};

/// Between two reports. The longer, the more a client may send before all members know.
const PERIOD: Duration = Duration::from_secs(1);

/// Exchanges reports without end. Costs nothing as long as no limit is shared.
pub(super) async fn run(live: Live, fleet: &Fleet) {
    let mut exchange = RateExchange::default();
    loop {
        tokio::time::sleep(PERIOD).await;
        let snapshot = live.load_full();
        let is_shared = snapshot.limiters.values().any(|limiter| limiter.config.shared);
        if !is_shared {
            continue;
        }
        let report = taken(&snapshot);
        // Without the store, each member limits by what it knows.
        if fleet.trouble().is_some() {
            continue;
        }
        let seed = RateExchange::seed(&fleet.keys());
        let seed = match seed {
            Ok(seed) => seed,
            Err(made) => {
                let _ = fleet.try_commit(&made).await;
                continue;
            }
        };
        snapshot.limiters.values().filter(|limiter| limiter.config.shared).for_each(|one| one.set_seed(seed));
        let news = exchange.news(fleet.name(), &fleet.keys());
        news.iter().for_each(|report| count(&snapshot, report));
        if !report.0.is_empty() {
            let _ = fleet.try_commit(&RateExchange::report(fleet.name(), &report)).await;
        }
    }
}

fn taken(snapshot: &Snapshot) -> RateReport {
    let shared = snapshot.limiters.values().filter(|limiter| limiter.config.shared);
    let served = shared.map(|limiter| (limiter.name.clone(), limiter.take_served(CLIENTS_MAX)));
    RateReport(served.filter(|(_, served)| !served.is_empty()).collect())
}

fn count(snapshot: &Snapshot, report: &RateReport) {
    for (name, served) in &report.0 {
        let limiter = snapshot.limiters.get(name).filter(|limiter| limiter.config.shared);
        limiter.into_iter().for_each(|limiter| limiter.add_served(served, now_ns()));
    }
}
