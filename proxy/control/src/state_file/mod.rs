//! The state file, which keeps the results of active checks across a restart.
//!
//! Only for clusters with both `state_file` and `health_check`: without checks a restored unhealthy endpoint would
//! never become healthy again. Ejections are short and are not stored.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_core::cluster::Cluster;
use sluice_core::durable;

#[cfg(test)]
mod tests;

/// The version of the format; a file with another version is set aside.
const VERSION: u32 = 1;

/// Maximum bytes of a file, enough for about 50 000 endpoints.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// How often [`run`] checks for changes, and so the maximum write rate.
const WRITE_PERIOD: Duration = Duration::from_secs(1);

/// One file: clusters by name, their endpoints by label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    version: u32,
    clusters: BTreeMap<String, BTreeMap<String, Entry>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    healthy: bool,
    /// When that started, in seconds of Unix time; 0 if it has been so since startup.
    since: u64,
}

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Format(#[from] serde_json::Error),
    #[error("its version is {0}, but this release reads version {VERSION}")]
    Version(u32),
    #[error("it is larger than {FILE_BYTES_MAX} bytes")]
    TooLarge,
}

/// Gives endpoints the health recorded in their clusters' state files. Call before the first request.
///
/// A missing file is ignored. A damaged one is logged and renamed to `FILE.damaged`; one that cannot be read is logged
/// and left alone.
pub fn restore(clusters: &[Arc<Cluster>]) {
    for (path, clusters) in by_path(clusters) {
        match read(&path) {
            Ok(Some(state)) => clusters.iter().for_each(|cluster| apply(&state, cluster)),
            Ok(None) => {}
            Err(ReadError::Io(error)) => {
                tracing::warn!(path = %path.display(), %error, "cannot read the state file; endpoints start healthy");
            }
            Err(error) => set_aside(&path, &error),
        }
    }
}

/// Writes every state file with the current state, at shutdown. Blocks until the bytes are on disk.
pub fn save(clusters: &[Arc<Cluster>]) {
    for (path, clusters) in by_path(clusters) {
        if let Err(error) = write(&path, &State::of(&clusters)) {
            tracing::warn!(path = %path.display(), %error, "cannot write the state file");
        }
    }
}

/// Writes a state file whenever an endpoint's health has changed, at most once a second, without end; returns at once
/// if no cluster has one. Needs a tokio runtime with time.
pub async fn run(clusters: Vec<Arc<Cluster>>) {
    let mut files: Vec<Written> = by_path(&clusters).into_iter().map(Written::new).collect();
    // Clusters without a file are not kept alive by this task.
    drop(clusters);
    while !files.is_empty() {
        tokio::time::sleep(WRITE_PERIOD).await;
        for file in &mut files {
            file.write_if_changed().await;
        }
    }
}

/// A file and the state last written to it.
struct Written {
    path: PathBuf,
    clusters: Vec<Arc<Cluster>>,
    state: Option<State>,
    failing: bool,
}

impl Written {
    fn new((path, clusters): (PathBuf, Vec<Arc<Cluster>>)) -> Written {
        Written { path, clusters, state: None, failing: false }
    }

    async fn write_if_changed(&mut self) {
        let state = State::of(&self.clusters);
        if self.state.as_ref() == Some(&state) {
            return;
        }
        let (path, taken) = (self.path.clone(), state.clone());
        // A disk that stalls must not stall the checks on this thread.
        let written = tokio::task::spawn_blocking(move || write(&path, &taken)).await;
        match written.map_err(io::Error::other).flatten() {
            Ok(()) => {
                self.state = Some(state);
                self.failing = false;
            }
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!(path = %self.path.display(), %error, "cannot write the state file; will retry");
            }
            Err(_) => {}
        }
    }
}

impl State {
    fn of(clusters: &[Arc<Cluster>]) -> State {
        let entries = |cluster: &Arc<Cluster>| {
            let endpoints = cluster.endpoints();
            let entry = |endpoint: &Arc<sluice_core::cluster::Endpoint>| {
                let (healthy, since) = (endpoint.active_health(), endpoint.health_since_unix_s());
                (endpoint.label.clone(), Entry { healthy, since })
            };
            (cluster.name.clone(), endpoints.iter().map(entry).collect())
        };
        State { version: VERSION, clusters: clusters.iter().map(entries).collect() }
    }
}

/// Clusters may share a file, which must then be read and written as a whole.
fn by_path(clusters: &[Arc<Cluster>]) -> BTreeMap<PathBuf, Vec<Arc<Cluster>>> {
    let mut by_path: BTreeMap<PathBuf, Vec<Arc<Cluster>>> = BTreeMap::new();
    for cluster in clusters {
        if let (Some(path), Some(_)) = (&cluster.config.state_file, &cluster.config.health_check) {
            by_path.entry(path.clone()).or_default().push(Arc::clone(cluster));
        }
    }
    by_path
}

fn apply(state: &State, cluster: &Cluster) {
    let Some(entries) = state.clusters.get(&cluster.name) else {
        return;
    };
    for endpoint in cluster.endpoints().iter() {
        if let Some(entry) = entries.get(&endpoint.label) {
            endpoint.set_active_health(entry.healthy, entry.since);
        }
    }
}

fn read(path: &Path) -> Result<Option<State>, ReadError> {
    let Some(bytes) = durable::read(path, FILE_BYTES_MAX)? else {
        return Ok(None);
    };
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ReadError::TooLarge);
    }
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    // The version first: a later format may not parse as this one.
    match serde_json::from_slice(&bytes)? {
        Versioned { version: VERSION } => Ok(Some(serde_json::from_slice(&bytes)?)),
        Versioned { version } => Err(ReadError::Version(version)),
    }
}

fn set_aside(path: &Path, error: &ReadError) {
    let shown = path.display();
    match durable::set_aside(path) {
        Ok(aside) => {
            tracing::warn!(path = %shown, %error, aside = %aside.display(), "the state file is damaged; renamed it")
        }
        Err(failed) => {
            tracing::warn!(path = %shown, %error, %failed, "the state file is damaged and cannot be renamed")
        }
    }
}

fn write(path: &Path, state: &State) -> io::Result<()> {
    durable::write(path, &serde_json::to_vec_pretty(state)?)
}
