//! Keeps what is deployed as it is wanted: one command for a service at a time, several services at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_core::service::api::{ListResponse, path};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::DockerOptions;
use crate::commands::{self, ClientError};

/// After a command that failed, the same is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// How long a deploy waits for its targets. Until then the service cannot be changed, so one that is slow to start is
/// asked again instead.
const DEPLOY_TIMEOUT: &str = "5s";

/// Between two looks for what is due.
const TICK: Duration = Duration::from_millis(500);

/// What is deployed, and what should be.
pub(super) struct Keeper {
    control: PathBuf,
    prefix: String,
    remove_after: Duration,
    wanted: BTreeMap<String, Value>,
    /// What was deployed by whom; `None` before this process.
    deployed: BTreeMap<String, Option<Value>>,
    /// Since when services have no container.
    gone: BTreeMap<String, Instant>,
    /// When a failed command is tried again, unless something else is wanted.
    failed: BTreeMap<String, (Option<Value>, Instant)>,
    /// Targets that were not healthy: until this time, the others are deployed without them.
    unwell: BTreeMap<String, (BTreeSet<String>, Instant)>,
    under_way: BTreeSet<String>,
    commands: JoinSet<Outcome>,
    is_away: bool,
}

/// A command on a service has ended. `wanted` is `None` if it was removed.
struct Outcome {
    name: String,
    wanted: Option<Value>,
    error: Option<ClientError>,
}

impl Keeper {
    pub(super) fn new(options: &DockerOptions) -> Self {
        Self {
            control: options.control.clone(),
            prefix: options.prefix.clone(),
            remove_after: options.remove_after,
            wanted: BTreeMap::new(),
            deployed: BTreeMap::new(),
            gone: BTreeMap::new(),
            failed: BTreeMap::new(),
            unwell: BTreeMap::new(),
            under_way: BTreeSet::new(),
            commands: JoinSet::new(),
            is_away: false,
        }
    }

    /// From now on, this is wanted.
    pub(super) fn want(&mut self, services: BTreeMap<String, Value>) {
        self.wanted = services;
        let Self { wanted, deployed, gone, failed, unwell, .. } = self;
        let is_known = |name: &String| wanted.contains_key(name) || deployed.contains_key(name);
        gone.retain(|name, _| is_known(name));
        failed.retain(|name, _| is_known(name));
        unwell.retain(|name, _| is_known(name));
    }

    /// Does what is due, and what becomes due within this time. May be dropped and called again.
    pub(super) async fn work_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        self.look().await;
        loop {
            self.begin();
            let next = until.min(Instant::now() + TICK);
            match timeout_at(next, self.commands.join_next()).await {
                Ok(Some(Ok(outcome))) => self.end(outcome),
                Ok(Some(Err(error))) => tracing::error!(%error, "a command has failed"),
                Ok(None) => sleep_until(next).await,
                Err(_) => {}
            }
            if Instant::now() >= until {
                return;
            }
        }
    }

    /// Looks at what is deployed: sluice may have lost it, or another process of this kind has left it.
    async fn look(&mut self) {
        let control = self.control.clone();
        let asking = tokio::task::spawn_blocking(move || {
            commands::request(&control, "GET", "/v1/services", String::new())
                .map_err(|error| error.to_string())
        });
        let answer = asking.await.unwrap_or_else(|error| Err(error.to_string()));
        let listed = answer.and_then(|value| {
            serde_json::from_value::<ListResponse>(value).map_err(|error| error.to_string())
        });
        match listed {
            Ok(listed) => {
                if std::mem::replace(&mut self.is_away, false) {
                    tracing::info!("sluice answers again");
                }
                let ours = listed.services.into_keys().filter(|name| name.starts_with(&self.prefix));
                let there: BTreeSet<_> = ours.collect();
                self.deployed.retain(|name, _| there.contains(name) || self.under_way.contains(name));
                for name in there {
                    self.deployed.entry(name).or_insert(None);
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_away, true) {
                    tracing::warn!(error, "sluice does not answer");
                }
            }
        }
    }

    /// Begins the commands that are due.
    fn begin(&mut self) {
        if self.is_away {
            return;
        }
        let now = Instant::now();
        let names: BTreeSet<_> = self.wanted.keys().chain(self.deployed.keys()).cloned().collect();
        for name in names {
            if self.under_way.contains(&name) {
                continue;
            }
            let wanted = self.wanted_now(&name, now);
            if wanted.is_some() {
                self.gone.remove(&name);
                if self.deployed.get(&name) == Some(&wanted) {
                    continue;
                }
            } else if now < *self.gone.entry(name.clone()).or_insert(now) + self.remove_after {
                continue;
            }
            let is_early = |(same, until): &(Option<Value>, Instant)| *same == wanted && now < *until;
            if self.failed.get(&name).is_some_and(is_early) {
                continue;
            }
            self.command(name, wanted);
        }
    }

    /// What is wanted of a service now: without targets that were unwell a moment ago, unless all were.
    fn wanted_now(&self, name: &str, now: Instant) -> Option<Value> {
        let mut wanted = self.wanted.get(name)?.clone();
        let unwell = self.unwell.get(name).filter(|(_, until)| now < *until);
        let targets = wanted["targets"].as_array().cloned().unwrap_or_default();
        let is_well = |target: &Value| {
            let is_unwell =
                |(unwell, _): &(BTreeSet<String>, _)| target.as_str().is_some_and(|one| unwell.contains(one));
            !unwell.is_some_and(is_unwell)
        };
        let well: Vec<_> = targets.iter().filter(|target| is_well(target)).cloned().collect();
        if !well.is_empty() {
            wanted["targets"] = well.into();
        }
        wanted["deployment_options"] = json!({"deploy_timeout": DEPLOY_TIMEOUT});
        Some(wanted)
    }

    fn command(&mut self, name: String, wanted: Option<Value>) {
        self.under_way.insert(name.clone());
        let control = self.control.clone();
        self.commands.spawn_blocking(move || {
            let outcome = match &wanted {
                Some(body) => commands::call(&control, &path(&name, "deploy"), body),
                None => commands::request(&control, "DELETE", &path(&name, ""), String::new()),
            };
            Outcome { name, wanted, error: outcome.err() }
        });
    }

    fn end(&mut self, outcome: Outcome) {
        let Outcome { name, wanted, error } = outcome;
        self.under_way.remove(&name);
        if let Some(error) = error {
            let until = Instant::now() + RETRY;
            let unwell: BTreeSet<_> = unhealthy(&error).map(|(target, _)| target.to_owned()).collect();
            let known = self.failed.insert(name.clone(), (wanted.clone(), until));
            let are_known = self.unwell.insert(name.clone(), (unwell.clone(), until));
            // The same is not said again.
            if known.is_none_or(|(before, _)| before != wanted)
                && are_known.is_none_or(|(before, _)| before != unwell)
            {
                let details: Vec<_> =
                    unhealthy(&error).map(|(target, why)| format!("{target}: {why}")).collect();
                tracing::warn!(service = name, %error, ?details, "a service cannot be changed; trying again");
            }
            return;
        }
        self.failed.remove(&name);
        match wanted {
            Some(body) => {
                tracing::info!(service = name, targets = %body["targets"], "deployed");
                self.deployed.insert(name, Some(body));
            }
            None => {
                tracing::info!(service = name, "removed: it has no container any more");
                self.gone.remove(&name);
                self.deployed.remove(&name);
            }
        }
    }
}

/// The targets that a deploy has found unhealthy, and why.
fn unhealthy(error: &ClientError) -> impl Iterator<Item = (&str, &str)> {
    let details = match error {
        ClientError::Refused(body) => body["details"].as_array(),
        _ => None,
    };
    details.into_iter().flatten().filter_map(|detail| detail.as_str()?.split_once(": "))
}
