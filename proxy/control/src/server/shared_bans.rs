//! Exchanges the bans of this process with its fleet, once a second.

use std::time::{Duration, Instant};

use sluice_core::bans::ListedBan;
use sluice_core::clock::{now_ms, unix_ms};
use sluice_engine::snapshot::{Live, Snapshot};

use crate::fleet::{BanExchange, Fleet};

/// Between two looks for changes.
const PERIOD: Duration = Duration::from_secs(1);
/// Between two comparisons without a change: bans end by themselves.
const AGAIN: Duration = Duration::from_secs(10);

/// Exchanges bans without end.
pub(super) async fn run(live: Live, fleet: &Fleet) {
    let mut exchange = BanExchange::default();
    let (mut last, mut compared) = ((u64::MAX, u64::MAX), Instant::now());
    let mut changes = fleet.changes();
    loop {
        tokio::time::sleep(PERIOD).await;
        if fleet.trouble().is_some() {
            continue;
        }
        let snapshot = live.load_full();
        let now = (snapshot.bans.changes(), *changes.borrow_and_update());
        if now == last && compared.elapsed() < AGAIN {
            continue;
        }
        (last, compared) = (now, Instant::now());
        let steps = {
            let keys = fleet.keys();
            exchange.compare(fleet.name(), &keys, &snapshot.bans.list(now_ms()), unix_ms())
        };
        for ban in &steps.begin {
            if begin(&snapshot, ban) {
                exchange.begun(ban, unix_ms());
            }
        }
        for client in steps.end {
            snapshot.bans.remove(client, now_ms());
            snapshot.limiters.values().for_each(|limit| limit.forget(client));
        }
        for commit in &steps.commits {
            // What is left is published in the next second.
            last = (u64::MAX, u64::MAX);
            if fleet.try_commit(commit).await.is_err() {
                break;
            }
        }
    }
}

/// Begins a ban of another member; not of a proxy that this one trusts, and not beyond the limit.
fn begin(snapshot: &Snapshot, ban: &ListedBan) -> bool {
    if snapshot.trusts(&ban.client.to_canonical()) {
        return false;
    }
    let time = Duration::from_millis(ban.left_ms);
    snapshot.bans.add(ban.client, (time, &ban.by), snapshot.config.bans_max, now_ms()).is_ok()
}
