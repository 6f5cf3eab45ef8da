//! etcd as a store, by its JSON gateway: transactions that compare revisions, leases, and a watch that goes on from the
//! last revision.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_config::EtcdSource;

use super::{Commit, Item, KEYS_MAX, MEMBERS, Outcome, STATE, StoreError, Update};
use crate::remote::changes::ChangeStream;
use crate::remote::etcd::{EtcdClient, KeyValue, Range, WatchResult, range_of};

/// How long a watch is believed that says nothing: its member may be cut off. Going on costs two short requests.
const LIFE: Duration = Duration::from_secs(10);

/// Follows the keys of the shared state.
pub(crate) struct EtcdWatcher {
    client: EtcdClient,
    prefix: String,
    changes: ChangeStream,
    /// The revision that was seen last. `None` before everything was read.
    seen: Option<u64>,
    keys: BTreeSet<String>,
}

/// Changes the shared state.
pub(crate) struct EtcdStore {
    client: EtcdClient,
    prefix: String,
    ttl_s: u64,
    presence: Option<Presence>,
}

/// What is said of this member, and the lease with which it vanishes.
struct Presence {
    lease: String,
    said: Vec<u8>,
}

#[derive(Deserialize)]
struct Txn {
    #[serde(default)]
    succeeded: bool,
}

#[derive(Deserialize)]
struct LeaseGrant {
    #[serde(rename = "ID")]
    id: String,
}

#[derive(Deserialize)]
struct LeaseAnswer {
    result: TimeLeft,
}

#[derive(Deserialize)]
struct TimeLeft {
    #[serde(default, rename = "TTL")]
    ttl: String,
}

impl EtcdWatcher {
    pub(super) fn new(config: &EtcdSource) -> Result<Self, StoreError> {
        Ok(Self {
            client: EtcdClient::new(config)?,
            prefix: format!("{}{STATE}", config.prefix),
            changes: ChangeStream::living(LIFE),
            seen: None,
            keys: BTreeSet::new(),
        })
    }

    /// See [`super::Watcher::next`].
    pub(super) async fn next(&mut self) -> Result<Update, StoreError> {
        let mut failed = StoreError::from("no server is configured");
        for _ in 0..self.client.count() {
            match self.attempt().await {
                Ok(update) => return Ok(update),
                Err(error) => failed = error,
            }
            self.changes.end();
            self.client.rotate();
        }
        // It may have been restored from a copy, or other keys may be lost.
        self.seen = None;
        Err(failed)
    }

    async fn attempt(&mut self) -> Result<Update, StoreError> {
        loop {
            if let Some(lines) = self.changes.next().await? {
                let changes = self.take(&lines)?;
                if changes.is_empty() {
                    continue;
                }
                return Ok(Update::Changes(changes));
            }
            let seen = self.seen;
            match seen {
                Some(revision) if self.is_where_it_was(revision).await? => self.watch(revision).await?,
                _ => return self.read_all().await,
            }
        }
    }

    /// Whether the store still has what was seen: a copy that was restored has another revision or other keys.
    async fn is_where_it_was(&mut self, revision: u64) -> Result<bool, StoreError> {
        let [key, range_end] = range_of(&self.prefix);
        let request = json!({"key": key, "range_end": range_end, "count_only": true, "revision": revision});
        // A revision of the future, and one that is compacted, are refused.
        let Ok(range) = self.client.ask::<Range>("/v3/kv/range", &request).await else { return Ok(false) };
        Ok(range.count()? == self.keys.len())
    }

    async fn watch(&mut self, revision: u64) -> Result<(), StoreError> {
        let [key, range_end] = range_of(&self.prefix);
        let request =
            json!({"create_request": {"key": key, "range_end": range_end, "start_revision": revision + 1}});
        self.changes.begin(self.client.begin("/v3/watch", &request).await?);
        Ok(())
    }

    async fn read_all(&mut self) -> Result<Update, StoreError> {
        self.seen = None;
        let [key, range_end] = range_of(&self.prefix);
        let request = json!({"key": key, "range_end": range_end, "limit": KEYS_MAX + 1});
        let range: Range = self.client.ask("/v3/kv/range", &request).await?;
        if range.kvs.len() > KEYS_MAX {
            return Err(format!("more than {KEYS_MAX} keys").into());
        }
        let revision = range.revision()?;
        let mut all = BTreeMap::new();
        for one in &range.kvs {
            let item = Item { value: one.value()?, version: one.revision()? };
            all.insert(self.relative(one)?, item);
        }
        self.watch(revision).await?;
        self.keys = all.keys().cloned().collect();
        self.seen = Some(revision);
        Ok(Update::All(all))
    }

    fn take(&mut self, lines: &[String]) -> Result<Vec<(String, Option<Item>)>, StoreError> {
        let mut changes = Vec::new();
        for line in lines {
            let result = WatchResult::read(line)?;
            for event in &result.events {
                let key = self.relative(&event.kv)?;
                let item = match event.is_delete() {
                    true => None,
                    false => Some(Item { value: event.kv.value()?, version: event.kv.revision()? }),
                };
                match item {
                    Some(_) => self.keys.insert(key.clone()),
                    None => self.keys.remove(&key),
                };
                changes.push((key, item));
            }
            self.seen = self.seen.max(Some(result.revision()?));
        }
        if self.keys.len() > KEYS_MAX {
            return Err(format!("more than {KEYS_MAX} keys").into());
        }
        Ok(changes)
    }

    /// The key without the prefix. One that is not UTF-8 is not of a member, but it counts.
    fn relative(&self, one: &KeyValue) -> Result<String, StoreError> {
        let Ok(key) = one.key() else { return Ok(format!("unreadable {}", one.key)) };
        Ok(key.strip_prefix(&self.prefix).ok_or("a key has another prefix")?.to_owned())
    }
}

impl EtcdStore {
    pub(super) fn new(config: &EtcdSource, ttl_ms: u64) -> Result<Self, StoreError> {
        let ttl_s = ttl_ms.div_ceil(1000);
        Ok(Self { client: EtcdClient::new(config)?, prefix: config.prefix.clone(), ttl_s, presence: None })
    }

    /// See [`super::Client::commit`].
    pub(super) async fn commit(&mut self, commit: &Commit) -> Result<Outcome, StoreError> {
        let key = |key: &str| BASE64.encode(format!("{}{STATE}{key}", self.prefix).as_bytes());
        let check = |(of, version): &(String, u64)| json!({"key": key(of), "target": "MOD", "result": "EQUAL", "mod_revision": version.to_string()});
        let puts = commit
            .puts
            .iter()
            .map(|(of, value)| json!({"request_put": {"key": key(of), "value": BASE64.encode(value)}}));
        let deletes = commit.deletes.iter().map(|of| json!({"request_delete_range": {"key": key(of)}}));
        let request = json!({
            "compare": commit.checks.iter().map(check).collect::<Vec<_>>(),
            "success": puts.chain(deletes).collect::<Vec<_>>(),
        });
        let txn: Txn = self.ask("/v3/kv/txn", &request).await?;
        Ok(if txn.succeeded { Outcome::Made } else { Outcome::Conflict })
    }

    /// See [`super::Client::members`].
    pub(super) async fn members(&mut self) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let prefix = format!("{}{MEMBERS}", self.prefix);
        let [key, range_end] = range_of(&prefix);
        let range: Range = self.ask("/v3/kv/range", &json!({"key": key, "range_end": range_end})).await?;
        let mut members = BTreeMap::new();
        for one in &range.kvs {
            let key = one.key()?;
            members.insert(key.strip_prefix(&prefix).unwrap_or(&key).to_owned(), one.value()?);
        }
        Ok(members)
    }

    /// See [`super::Client::announce`].
    pub(super) async fn announce(&mut self, member: &str, said: &[u8]) -> Result<(), StoreError> {
        let known = match self.presence.take() {
            Some(presence) if self.keep_alive(&presence.lease).await? => Some(presence),
            _ => None,
        };
        let presence = match known {
            Some(presence) => presence,
            None => Presence { lease: self.grant().await?, said: Vec::new() },
        };
        if presence.said != said {
            let key = BASE64.encode(format!("{}{MEMBERS}{member}", self.prefix).as_bytes());
            let request = json!({"key": key, "value": BASE64.encode(said), "lease": presence.lease});
            self.ask::<Value>("/v3/kv/put", &request).await?;
        }
        self.presence = Some(Presence { said: said.to_vec(), ..presence });
        Ok(())
    }

    async fn grant(&mut self) -> Result<String, StoreError> {
        let granted: LeaseGrant = self.ask("/v3/lease/grant", &json!({"TTL": self.ttl_s})).await?;
        Ok(granted.id)
    }

    /// Whether the lease lives.
    async fn keep_alive(&mut self, lease: &str) -> Result<bool, StoreError> {
        let kept: LeaseAnswer = self.ask("/v3/lease/keepalive", &json!({"ID": lease})).await?;
        // An expired one has no time.
        Ok(kept.result.ttl.parse::<i64>().is_ok_and(|ttl| ttl > 0))
    }

    /// See [`super::Client::leave`].
    pub(super) async fn leave(&mut self) {
        if let Some(Presence { lease, .. }) = self.presence.take() {
            let _ = self.ask::<Value>("/v3/lease/revoke", &json!({"ID": lease})).await;
        }
    }

    /// Asks a member; the next request goes to another one if it fails.
    async fn ask<T: serde::de::DeserializeOwned>(
        &mut self,
        target: &str,
        request: &Value,
    ) -> Result<T, StoreError> {
        let answer = self.client.ask(target, request).await;
        Ok(answer.inspect_err(|_| self.client.rotate())?)
    }
}
