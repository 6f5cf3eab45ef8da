//! Finds the endpoints of clusters in the DNS, a file, Consul, etcd or Kubernetes.
//!
//! A source gives whole lists; `trust` decides which of them are used. Names in them are resolved as those of the
//! configuration are. Nothing here is on the path of a request: a source that is away changes nothing.

mod consul;
mod dns;
pub(crate) mod error;
mod etcd;
mod file;
pub(crate) mod http;
mod kubernetes;
mod memory;
mod source;
mod trust;
mod value;

use std::sync::Arc;
use std::time::Duration;

use sluice_config::{Discovery, Endpoint};
use sluice_core::clock::unix_s;
use sluice_core::cluster::{Cluster, DiscoveryStatus};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use error::SourceError;
use source::Finder;
use trust::{Judge, Verdict};

/// Between two lists that are applied: what changes faster is applied together.
const PACE: Duration = Duration::from_millis(100);
/// After a failure, and at most after many.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// The first list of a source, within the time that the configuration gives it; otherwise what was kept of an earlier
/// one.
pub(crate) async fn first(cluster: &str, config: &Discovery) -> Vec<Endpoint> {
    let found = async {
        let mut finder = Finder::new(config)?;
        let limit = Duration::from_millis(config.first_timeout_ms);
        let list =
            timeout(limit, finder.next()).await.map_err(|_| SourceError::from("no answer in time"))??;
        match Judge::new(config, Vec::new()).judge(&list, Instant::now()) {
            Verdict::Use => Ok(list),
            Verdict::Hold(..) | Verdict::Refuse(..) if list.is_empty() => {
                Err(SourceError::from("it has no endpoints"))
            }
            Verdict::Hold(why, _) | Verdict::Refuse(why) => Err(why.into()),
        }
    };
    match found.await {
        Ok(list) => list,
        Err(reason) => {
            let kept = memory::read(config);
            tracing::warn!(cluster, kept = kept.len(), %reason, "endpoints cannot be found yet");
            kept
        }
    }
}

/// Finds endpoints without end, and gives them to `found`. `known` are those in use.
pub(crate) async fn run(cluster: Arc<Cluster>, known: Vec<Endpoint>, found: watch::Sender<Vec<Endpoint>>) {
    let Some(config) = &cluster.config.discover else { return };
    let mut watcher = Watcher {
        cluster: &cluster.name,
        config,
        status: cluster.discovery(),
        judge: Judge::new(config, known),
        backoff: BACKOFF.0,
        found,
    };
    watcher.status.set_failing(false);
    loop {
        let mut finder = match Finder::new(config) {
            Ok(finder) => finder,
            Err(reason) => {
                watcher.fail(&reason).await;
                continue;
            }
        };
        let reason = watcher.follow(&mut finder).await;
        watcher.fail(&reason).await;
    }
}

struct Watcher<'c> {
    cluster: &'c str,
    config: &'c Discovery,
    status: &'c DiscoveryStatus,
    judge: Judge<'c>,
    backoff: Duration,
    found: watch::Sender<Vec<Endpoint>>,
}

impl Watcher<'_> {
    /// Takes the lists of a source until it fails.
    async fn follow(&mut self, finder: &mut Finder) -> SourceError {
        let mut held: Option<(Vec<Endpoint>, Instant)> = None;
        loop {
            let list = match &held {
                None => finder.next().await,
                Some((list, until)) => match tokio::time::timeout_at(*until, finder.next()).await {
                    Ok(list) => list,
                    // It has not said anything else since.
                    Err(_) => Ok(list.clone()),
                },
            };
            let list = match list {
                Ok(list) => list,
                Err(reason) => return reason,
            };
            self.answered();
            held = self.take(list);
            sleep(PACE).await;
        }
    }

    fn answered(&mut self) {
        self.backoff = BACKOFF.0;
        self.status.answered(unix_s());
        if self.status.set_failing(false) {
            tracing::info!(cluster = self.cluster, "the source of endpoints answers again");
        }
    }

    /// Uses a list if it is believed; otherwise it is returned with the time from which on it will be.
    fn take(&mut self, list: Vec<Endpoint>) -> Option<(Vec<Endpoint>, Instant)> {
        match self.judge.judge(&list, Instant::now()) {
            Verdict::Use => {
                if self.status.set_doubt(None) {
                    tracing::info!(cluster = self.cluster, "the source of endpoints is believed again");
                }
                if self.judge.adopt(&list) {
                    self.status.updated(list.len());
                    memory::write(self.config, &list);
                    let _ = self.found.send(list);
                }
                None
            }
            Verdict::Hold(why, until) => {
                self.doubt(&why);
                Some((list, until))
            }
            Verdict::Refuse(why) => {
                self.doubt(&why);
                None
            }
        }
    }

    fn doubt(&self, why: &str) {
        if self.status.set_doubt(Some(why)) {
            let kept = self.judge.in_use().len();
            tracing::warn!(cluster = self.cluster, kept, "a list of endpoints is not believed: {why}");
        }
    }

    async fn fail(&mut self, reason: &SourceError) {
        self.status.failed();
        if self.status.set_failing(true) {
            let kept = self.judge.in_use().len();
            tracing::warn!(
                cluster = self.cluster,
                kept,
                %reason,
                "endpoints cannot be found; using the last known"
            );
        }
        // Members of a fleet do not come back all at once.
        let jitter = 0.5 + fastrand::f64();
        sleep(self.backoff.mul_f64(jitter)).await;
        self.backoff = (self.backoff * 2).min(BACKOFF.1);
    }
}
