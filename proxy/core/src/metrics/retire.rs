//! Removes the series of clusters and endpoints that are gone: each deploy creates new ones.
//!
//! Prometheus expects the series of a target that is gone to vanish. A series is removed only once nothing can be
//! counted in it any more, so a sum over time misses only what happened after the last scrape. Displayed totals (status
//! page, top) must not fall: they include the counts of removed series.

use super::series::Total;
use super::tally::{Counts, Tally};
use super::{Metrics, State, lock};

/// The label value for what an exchange did not reach.
const NONE: &str = "-";

/// Which clusters and endpoints exist.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Whether an exchange may still be counted for a cluster of this name.
    pub cluster: fn(&str) -> bool,
    /// Whether an exchange may still be counted for an endpoint of this label.
    pub endpoint: fn(&str) -> bool,
}

impl Known {
    fn has_cluster(&self, name: &str) -> bool {
        name == NONE || (self.cluster)(name)
    }

    fn has_endpoint(&self, label: &str) -> bool {
        label == NONE || (self.endpoint)(label)
    }
}

impl Metrics {
    /// Sets how to find out which clusters and endpoints exist; without it, no series is removed. Only the first call
    /// has an effect.
    pub fn set_known(&self, known: Known) {
        let _ = self.state.known.set(known);
    }
}

impl State {
    /// Removes series whose cluster or endpoint is gone. For the control thread, which creates clusters and endpoints.
    pub(super) fn retire(&self) {
        let Some(known) = self.known.get() else { return };
        let gone = self
            .table
            .take_out(|labels| !known.has_cluster(&labels.cluster) || !known.has_endpoint(&labels.endpoint));
        if gone.is_empty() {
            return;
        }
        let mut retired = lock(&self.retired);
        for worker in lock(&self.workers).iter() {
            for series in worker.take_out(&gone) {
                let mut total = Total::default();
                total.add(&series);
                retired.entry(series.labels.cluster.clone()).or_default().add(&Counts::of(&total));
            }
        }
        // One entry for all clusters that are gone: the number of their names is unlimited.
        let clusters: Vec<String> = retired.keys().filter(|name| !known.has_cluster(name)).cloned().collect();
        for counts in clusters.iter().filter_map(|name| retired.remove(name)).collect::<Vec<_>>() {
            retired.entry(NONE.to_owned()).or_default().add(&counts);
        }
    }

    /// Adds the counts of removed series to the exchanges that did not reach an endpoint.
    pub(super) fn add_retired(&self, tally: &mut Tally) {
        for (cluster, counts) in lock(&self.retired).iter() {
            tally.requests += counts.requests();
            tally
                .clusters
                .entry(cluster.clone())
                .or_default()
                .entry(NONE.to_owned())
                .or_default()
                .add(counts);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;
    use crate::record::ExchangeRecord;

    static OLD: AtomicBool = AtomicBool::new(true);
    static CLUSTER: AtomicBool = AtomicBool::new(true);

    #[test]
    fn removed_series_are_hidden_but_stay_in_the_totals() {
        let metrics = Metrics::new();
        metrics.set_known(Known {
            cluster: |name| name == "kept" || CLUSTER.load(Relaxed),
            endpoint: |label| label != "old:1" || OLD.load(Relaxed),
        });
        let (a, b) = (metrics.add_worker(), metrics.add_worker());
        let to = |endpoint: Option<(u32, &'static str)>, cluster| ExchangeRecord {
            endpoint,
            cluster: Some(cluster),
            ..ExchangeRecord::sample()
        };
        for worker in [&a, &b] {
            worker.record(&to(Some((1, "old:1")), "web"));
            worker.record(&to(Some((2, "new:1")), "web"));
            worker.record(&to(None, "web"));
            worker.record(&to(Some((3, "new:1")), "kept"));
        }
        let shown = |what: &str| metrics.render().matches(what).count() > 0;
        let of = |cluster: &str| {
            metrics.tally().clusters.get(cluster).map(|all| all.values().map(Counts::requests).sum::<u64>())
        };
        assert!(shown("old:1") && of("web") == Some(6));
        OLD.store(false, Relaxed);
        assert!(!shown("old:1") && shown("new:1"));
        assert_eq!((of("web"), metrics.tally().requests), (Some(6), 8));
        // The same address is a new endpoint later.
        OLD.store(true, Relaxed);
        a.record(&to(Some((4, "old:1")), "web"));
        assert_eq!((shown("old:1"), of("web"), metrics.tally().requests), (true, Some(7), 9));
        CLUSTER.store(false, Relaxed);
        assert!(!shown("cluster=\"web\"") && shown("cluster=\"kept\""));
        assert_eq!((of("web"), of("-"), metrics.tally().requests), (None, Some(7), 9));
        // An exchange without an endpoint uses the same key as before, and must not be counted in a removed series.
        CLUSTER.store(true, Relaxed);
        a.record(&to(None, "web"));
        assert_eq!((shown("cluster=\"web\""), of("web"), metrics.tally().requests), (true, Some(1), 10));
    }
}
