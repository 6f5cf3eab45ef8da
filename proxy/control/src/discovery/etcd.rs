//! Keys of etcd, by its JSON gateway: a range, then a watch from its revision on.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use data_encoding::BASE64;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::json;
use sluice_config::{Address, Endpoint, EtcdSource, parse_endpoint};

use super::changes::ChangeStream;
use super::error::SourceError;
use super::http::{Answer, Servers, add_secret, secret};

/// The values below a prefix.
pub(super) struct Etcd {
    config: EtcdSource,
    servers: Servers,
    token: Option<String>,
    most: usize,
    values: BTreeMap<String, Option<Endpoint>>,
    changes: ChangeStream,
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

#[derive(Deserialize)]
struct Range {
    header: Header,
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct Header {
    revision: String,
}

#[derive(Deserialize)]
struct KeyValue {
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
struct Watched {
    result: Option<WatchResult>,
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct WatchResult {
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    cancel_reason: String,
    #[serde(default)]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default, rename = "type")]
    kind: String,
    kv: KeyValue,
}

impl Etcd {
    /// With at most about this many keys.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(super) fn new(config: &EtcdSource, most: usize) -> Result<Self, SourceError> {
        let servers = Servers::new(
            config.endpoints.clone(),
            config.ca_file.as_deref(),
            config.client_certificate.as_ref(),
        )?;
        Ok(Self {
            config: config.clone(),
            servers,
            token: None,
            most,
            values: BTreeMap::new(),
            changes: ChangeStream::default(),
        })
    }

    /// See [`super::source::Finder::next`].
    pub(super) async fn next(&mut self) -> Result<Vec<Endpoint>, SourceError> {
        let mut failed = SourceError::from("no server is configured");
        // Each member once.
        for _ in 0..self.config.endpoints.len().max(1) {
            match self.attempt().await {
                Ok(list) => return Ok(list),
                Err(error) => failed = error,
            }
            self.changes.end();
            self.token = None;
            self.servers.rotate();
        }
        Err(failed)
    }

    async fn attempt(&mut self) -> Result<Vec<Endpoint>, SourceError> {
        if let Some(lines) = self.changes.next().await? {
            for line in lines {
                self.take(&line)?;
            }
            self.check_size()?;
            return Ok(self.list());
        }
        let revision = self.read_range().await?;
        let [key, range_end] = self.range();
        let request =
            json!({"create_request": {"key": key, "range_end": range_end, "start_revision": revision + 1}});
        self.changes.begin(self.ask("/v3/watch", &request).await?);
        Ok(self.list())
    }

    /// Reads all values, and returns their revision.
    async fn read_range(&mut self) -> Result<u64, SourceError> {
        if let Some((user, path)) = self.config.user.as_ref().zip(self.config.password_file.as_ref())
            && self.token.is_none()
        {
            let request = json!({"name": user, "password": secret(path)?});
            let answer = self.ask("/v3/auth/authenticate", &request).await?.whole().await?;
            let token: Token = serde_json::from_str(&answer).map_err(garbage)?;
            self.token = Some(token.token);
        }
        let [key, range_end] = self.range();
        let request = json!({"key": key, "range_end": range_end, "limit": self.most + 1});
        let answer = self.ask("/v3/kv/range", &request).await?.whole().await?;
        let range: Range = serde_json::from_str(&answer).map_err(garbage)?;
        let revision = range.header.revision.parse().map_err(|_| "the revision is no number".to_owned())?;
        let is_known: BTreeSet<_> = range.kvs.iter().map(|one| one.key.clone()).collect();
        self.values.retain(|key, _| is_known.contains(key));
        range.kvs.iter().for_each(|one| self.put(one));
        self.check_size()?;
        Ok(revision)
    }

    fn check_size(&self) -> Result<(), SourceError> {
        if self.values.len() > self.most {
            return Err(format!("more than {} keys", self.most).into());
        }
        Ok(())
    }

    async fn ask(&self, target: &str, request: &serde_json::Value) -> Result<Answer, SourceError> {
        let mut headers = HeaderMap::new();
        // A member without a leader answers by what it knew; this makes it fail instead.
        headers.insert("grpc-metadata-hasleader", http::HeaderValue::from_static("true"));
        if let Some(token) = &self.token {
            add_secret(&mut headers, "authorization", token)?;
        }
        let body = Bytes::from(request.to_string());
        self.servers.post(target, &headers, body).await
    }

    /// The first key, and the first one after the last.
    fn range(&self) -> [String; 2] {
        let first = self.config.prefix.as_bytes();
        let mut end = first.to_vec();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                break;
            }
        }
        if end.is_empty() {
            end.push(0);
        }
        [BASE64.encode(first), BASE64.encode(&end)]
    }

    /// Takes a line of the watch.
    fn take(&mut self, line: &str) -> Result<(), SourceError> {
        let watched: Watched = serde_json::from_str(line).map_err(garbage)?;
        if let Some(error) = watched.error {
            return Err(format!("the watch has failed: {error}").into());
        }
        let result = watched.result.ok_or("a line of the watch is empty")?;
        if result.canceled {
            return Err(format!("the watch was cancelled: {}", result.cancel_reason).into());
        }
        for event in result.events {
            if event.kind == "DELETE" {
                self.values.remove(&event.kv.key);
            } else {
                self.put(&event.kv);
            }
        }
        Ok(())
    }

    fn put(&mut self, one: &KeyValue) {
        let text = |encoded: &str| {
            let bytes = BASE64.decode(encoded.as_bytes()).map_err(|error| error.to_string())?;
            String::from_utf8(bytes).map_err(|error| error.to_string())
        };
        let key = text(&one.key).unwrap_or_else(|_| one.key.clone());
        let value = text(&one.value);
        let read = value.and_then(|value| parse_endpoint(&key, &value).map_err(|error| error.to_string()));
        // A socket of this host is not for others to name. The value itself is not logged: it may be anything.
        let read = read.ok().filter(|one| !matches!(one.address, Address::Unix(_)));
        let is_known = matches!(self.values.get(&one.key), Some(None));
        if read.is_none() && !is_known {
            tracing::warn!(key, "a value in etcd is no endpoint; it is left out");
        }
        self.values.insert(one.key.clone(), read);
    }

    fn list(&self) -> Vec<Endpoint> {
        let mut seen = BTreeSet::new();
        let known = self.values.values().flatten();
        known.filter(|one| seen.insert(one.address.to_string())).cloned().collect()
    }
}

fn garbage(error: serde_json::Error) -> String {
    format!("not what etcd answers: {error}")
}
