//! Keys of etcd, by its JSON gateway: a range, then a watch from its revision on.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::json;
use sluice_config::{Address, Endpoint, EtcdSource, parse_endpoint};

use crate::remote::RemoteError;
use crate::remote::changes::ChangeStream;
use crate::remote::etcd::{EtcdClient, KeyValue, Range, WatchResult, range_of};

/// The values below a prefix.
pub(super) struct Etcd {
    client: EtcdClient,
    range: [String; 2],
    most: usize,
    values: BTreeMap<String, Option<Endpoint>>,
    changes: ChangeStream,
}

impl Etcd {
    /// With at most about this many keys.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) fn new(config: &EtcdSource, most: usize) -> Result<Self, RemoteError> {
        Ok(Self {
            client: EtcdClient::new(config)?,
            range: range_of(&config.prefix),
            most,
            values: BTreeMap::new(),
            changes: ChangeStream::default(),
        })
    }

    /// See [`super::source::Finder::next`].
    pub(super) async fn next(&mut self) -> Result<Vec<Endpoint>, RemoteError> {
        let mut failed = RemoteError::from("no server is configured");
        // Each member once.
        for _ in 0..self.client.count() {
            match self.attempt().await {
                Ok(list) => return Ok(list),
                Err(error) => failed = error,
            }
            self.changes.end();
            self.client.rotate();
        }
        Err(failed)
    }

    async fn attempt(&mut self) -> Result<Vec<Endpoint>, RemoteError> {
        if let Some(lines) = self.changes.next().await? {
            for line in lines {
                self.take(&line)?;
            }
            self.check_size()?;
            return Ok(self.list());
        }
        let revision = self.read_range().await?;
        let [key, range_end] = &self.range;
        let request =
            json!({"create_request": {"key": key, "range_end": range_end, "start_revision": revision + 1}});
        self.changes.begin(self.client.begin("/v3/watch", &request).await?);
        Ok(self.list())
    }

    /// Reads all values, and returns their revision.
    async fn read_range(&mut self) -> Result<u64, RemoteError> {
        let [key, range_end] = &self.range;
        let request = json!({"key": key, "range_end": range_end, "limit": self.most + 1});
        let range: Range = self.client.ask("/v3/kv/range", &request).await?;
        let revision = range.revision()?;
        let is_known: BTreeSet<_> = range.kvs.iter().map(|one| one.key.clone()).collect();
        self.values.retain(|key, _| is_known.contains(key));
        range.kvs.iter().for_each(|one| self.put(one));
        self.check_size()?;
        Ok(revision)
    }

    fn check_size(&self) -> Result<(), RemoteError> {
        if self.values.len() > self.most {
            return Err(format!("more than {} keys", self.most).into());
        }
        Ok(())
    }

    /// Takes a line of the watch.
    fn take(&mut self, line: &str) -> Result<(), RemoteError> {
        for event in WatchResult::read(line)?.events {
            if event.is_delete() {
                self.values.remove(&event.kv.key);
            } else {
                self.put(&event.kv);
            }
        }
        Ok(())
    }

    fn put(&mut self, one: &KeyValue) {
        let key = one.key().unwrap_or_else(|_| one.key.clone());
        let read = one.value().ok().and_then(|value| String::from_utf8(value).ok());
        let read = read.and_then(|value| parse_endpoint(&key, &value).ok());
        // A socket of this host is not for others to name. The value itself is not logged: it may be anything.
        let read = read.filter(|one| !matches!(one.address, Address::Unix(_)));
        let is_known = matches!(self.values.get(&one.key), Some(None));
        if read.is_none() && !is_known {
            tracing::warn!(key, "a value in etcd is no endpoint; it is left out");
        }
        self.values.insert(one.key.clone(), read);
    }

    fn list(&self) -> Vec<Endpoint> {
        let mut seen = HashSet::with_capacity(self.values.len());
        let known = self.values.values().flatten();
        known.filter(|one| seen.insert(&one.address)).cloned().collect()
    }
}
