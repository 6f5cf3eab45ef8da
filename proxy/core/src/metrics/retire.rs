//! Series of clusters and endpoints that are gone go too: each deploy brings new ones.
//!
//! A series that vanishes is what Prometheus expects of a target that is gone. It is left only once nothing can be
//! counted by it any more, so a sum over time misses nothing but what came after the last scrape. What is shown as a sum
//! of its own (status page, top) must not fall: it gets what those that went had counted.

use super::series::Total;
use super::tally::{Counts, Tally};
use super::{Metrics, State, lock};

/// The name for what an exchange did not come to.
const NONE: &str = "-";

/// Which clusters and endpoints there are.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Whether an exchange may still be counted for a cluster of this name.
    pub cluster: fn(&str) -> bool,
    /// The same of an endpoint's label.
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
    /// Says which clusters and endpoints there are; without it no series ever goes. Only the first call counts.
    pub fn set_known(&self, known: Known) {
        let _ = self.state.known.set(known);
    }
}

impl State {
    /// Lets series go whose cluster or endpoint is gone. For the control thread, which makes them.
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
        // One entry for all clusters that are gone: there is no end to their names.
        let clusters: Vec<String> = retired.keys().filter(|name| !known.has_cluster(name)).cloned().collect();
        for counts in clusters.iter().filter_map(|name| retired.remove(name)).collect::<Vec<_>>() {
            retired.entry(NONE.to_owned()).or_default().add(&counts);
        }
    }

    /// Adds what series that went had counted, to what did not come to an endpoint.
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
    fn what_is_gone_is_not_shown_and_not_lost() {
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
        // The same address again is a new one.
        OLD.store(true, Relaxed);
        a.record(&to(Some((4, "old:1")), "web"));
        assert_eq!((shown("old:1"), of("web"), metrics.tally().requests), (true, Some(7), 9));
        CLUSTER.store(false, Relaxed);
        assert!(!shown("cluster=\"web\"") && shown("cluster=\"kept\""));
        assert_eq!((of("web"), of("-"), metrics.tally().requests), (None, Some(7), 9));
        // What has no endpoint goes by the same key as before, and must not be counted where nobody looks.
        CLUSTER.store(true, Relaxed);
        a.record(&to(None, "web"));
        assert_eq!((shown("cluster=\"web\""), of("web"), metrics.tally().requests), (true, Some(1), 10));
    }
}
