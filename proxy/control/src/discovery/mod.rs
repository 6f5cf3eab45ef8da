//! Finds the endpoints of clusters in the DNS, a file, Consul, etcd or Kubernetes.
//!
//! A source gives whole lists; `trust` decides which of them are used. Names in them are resolved as those of the
//! configuration are. Nothing here is on the path of a request: a source that is away changes nothing.

mod consul;
mod dns;
mod etcd;
mod file;
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

use crate::remote::RemoteError;
use memory::Memory;
use source::Finder;
use trust::{Judge, Verdict};

/// Between two lists that are applied: what changes faster is applied together.
const PACE: Duration = Duration::from_millis(100);
/// A source that fails after this time was well; one that fails sooner is asked less and less often.
const WELL_AFTER: Duration = Duration::from_secs(10);
/// After a failure, and at most after many.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(15));

/// The first list of a source, within the time that the configuration gives it. `known` is what is in use; it stays if
/// there is no list that is believed. If nothing is in use, what was kept of an earlier process is used.
pub(crate) async fn first(cluster: &str, config: &Discovery, known: Vec<Endpoint>) -> Vec<Endpoint> {
    let known = if known.is_empty() { memory::read(config) } else { known };
    let found = async {
        let mut finder = Finder::new(config)?;
        let limit = Duration::from_millis(config.first_timeout_ms);
        let list = timeout(limit, finder.next()).await;
        let mut list = list.map_err(|_| RemoteError::from("no answer in time"))??;
        trust::remove_duplicates(&mut list);
        match Judge::new(config, known.clone()).judge(&list, Instant::now()) {
            Verdict::Use => Ok(list),
            Verdict::Hold(why, _) | Verdict::Refuse(why) => Err(RemoteError::from(why)),
        }
    };
    match found.await {
        Ok(list) => list,
        Err(reason) => {
            tracing::warn!(cluster, kept = known.len(), %reason, "endpoints cannot be found yet");
            known
        }
    }
}

/// Finds endpoints without end, and gives them to `found`. `known` are those in use.
pub(crate) async fn run(cluster: Arc<Cluster>, known: Vec<Endpoint>, found: watch::Sender<Vec<Endpoint>>) {
    let Some(config) = &cluster.config.discover else { return };
    let mut watcher = Watcher {
        cluster: &cluster.name,
        status: cluster.discovery(),
        judge: Judge::new(config, known),
        memory: Memory::of(config),
        backoff: BACKOFF.0,
        found,
    };
    watcher.status.set_failing(false);
    watcher.status.set_doubt(None);
    loop {
        let begun = Instant::now();
        let reason = match Finder::new(config) {
            Ok(mut finder) => watcher.follow(&mut finder).await,
            Err(reason) => reason,
        };
        if begun.elapsed() >= WELL_AFTER {
            watcher.backoff = BACKOFF.0;
        }
        watcher.fail(&reason).await;
    }
}

struct Watcher<'c> {
    cluster: &'c str,
    status: &'c DiscoveryStatus,
    judge: Judge<'c>,
    memory: Memory,
    backoff: Duration,
    found: watch::Sender<Vec<Endpoint>>,
}

impl Watcher<'_> {
    /// Takes the lists of a source until it fails.
    async fn follow(&mut self, finder: &mut Finder) -> RemoteError {
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
            let mut list = match list {
                Ok(list) => list,
                Err(reason) => return reason,
            };
            trust::remove_duplicates(&mut list);
            self.answered();
            held = self.take(list);
            sleep(PACE).await;
        }
    }

    fn answered(&mut self) {
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
                self.memory.keep(&list);
                if self.judge.adopt(&list, Instant::now()) {
                    self.status.updated(list.len());
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

    async fn fail(&mut self, reason: &RemoteError) {
        self.status.failed();
        self.judge.forget_doubt();
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
