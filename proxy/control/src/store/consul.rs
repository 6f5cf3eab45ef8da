//! The key-value store of Consul: transactions that compare indexes, sessions, and blocking queries of everything.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use data_encoding::BASE64;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_config::ConsulStore;
use tokio::time::{Instant, sleep_until};

use super::{Commit, Item, KEYS_MAX, MEMBERS, Outcome, STATE, StoreError, Update};
use crate::remote::RemoteError;
use crate::remote::http::{Answer, PATIENCE, Servers, add_secret, secret};

/// How long the agent waits for a change.
const WAIT: Duration = Duration::from_secs(55);
/// Between two answers: each has everything.
const PACE: Duration = Duration::from_millis(100);

/// The agent.
struct Agent {
    config: ConsulStore,
    servers: Servers,
}

/// Follows the shared state.
pub(crate) struct ConsulWatcher {
    agent: Agent,
    /// What was seen last; 0 is nothing.
    index: u64,
    asked: Option<Instant>,
}

/// Changes the shared state.
pub(crate) struct ConsulClient {
    agent: Agent,
    ttl_s: u64,
    presence: Option<Presence>,
}

/// What is said of this member, and the session with which it vanishes.
struct Presence {
    session: String,
    said: Vec<u8>,
}

/// A key, with its value in base64.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pair {
    key: String,
    value: Option<String>,
    modify_index: u64,
}

#[derive(Deserialize)]
struct Session {
    #[serde(rename = "ID")]
    id: String,
}

impl ConsulWatcher {
    pub(super) fn new(config: &ConsulStore) -> Result<Self, StoreError> {
        Ok(Self { agent: Agent::new(config)?, index: 0, asked: None })
    }

    /// See [`super::Watcher::next`].
    pub(super) async fn next(&mut self) -> Result<Update, StoreError> {
        if let Some(asked) = self.asked {
            sleep_until(asked + PACE).await;
        }
        self.asked = Some(Instant::now());
        let wait = format!("&index={}&wait={}s", self.index, WAIT.as_secs());
        let patience = if self.index == 0 { PATIENCE } else { WAIT + WAIT / 16 + PATIENCE };
        let (index, pairs) = self.agent.list(STATE, &wait, patience).await?;
        // An index that goes back has been reset, as Consul's documentation says of blocking queries.
        self.index = if index < self.index { 0 } else { index };
        let mut all = BTreeMap::new();
        for (key, pair) in pairs {
            all.insert(key, Item { value: pair.value()?, version: pair.modify_index });
        }
        if all.len() > KEYS_MAX {
            return Err(format!("more than {KEYS_MAX} keys").into());
        }
        Ok(Update::All(all))
    }
}

impl ConsulClient {
    pub(super) fn new(config: &ConsulStore, ttl_ms: u64) -> Result<Self, StoreError> {
        Ok(Self { agent: Agent::new(config)?, ttl_s: ttl_ms.div_ceil(1000), presence: None })
    }

    /// See [`super::Client::commit`].
    pub(super) async fn commit(&mut self, commit: &Commit) -> Result<Outcome, StoreError> {
        let key = |key: &str| format!("{}{STATE}{key}", self.agent.config.prefix);
        let check = |(of, version): &(String, u64)| match version {
            0 => json!({"KV": {"Verb": "check-not-exists", "Key": key(of)}}),
            version => json!({"KV": {"Verb": "check-index", "Key": key(of), "Index": version}}),
        };
        let put = |(of, value): &(String, Vec<u8>)| json!({"KV": {"Verb": "set", "Key": key(of), "Value": BASE64.encode(value)}});
        let delete = |of: &String| json!({"KV": {"Verb": "delete", "Key": key(of)}});
        let operations = commit.checks.iter().map(check).chain(commit.puts.iter().map(put));
        let operations: Vec<Value> = operations.chain(commit.deletes.iter().map(delete)).collect();
        let answer = self.agent.put("/v1/txn", json!(operations).to_string().into()).await?;
        match answer.status() {
            StatusCode::OK => Ok(Outcome::Made),
            StatusCode::CONFLICT => Ok(Outcome::Conflict),
            // Too large, or not allowed.
            _ => Err(refusal(answer).await),
        }
    }

    /// See [`super::Client::members`].
    pub(super) async fn members(&mut self) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let (_, pairs) = self.agent.list(MEMBERS, "", PATIENCE).await?;
        pairs.into_iter().map(|(key, pair)| Ok((key, pair.value()?))).collect()
    }

    /// See [`super::Client::announce`].
    pub(super) async fn announce(&mut self, member: &str, said: &[u8]) -> Result<(), StoreError> {
        let known = match self.presence.take() {
            Some(presence) if self.renew(&presence.session).await? => Some(presence),
            _ => None,
        };
        let presence = match known {
            Some(presence) => presence,
            None => Presence { session: self.session(member).await?, said: Vec::new() },
        };
        if presence.said != said {
            let target = format!("{MEMBERS}{member}?acquire={}", presence.session);
            let target = self.agent.target(&target);
            let body = Bytes::copy_from_slice(said);
            let answer = self.agent.put(&target, body).await?.good().await?.whole().await?;
            if answer.trim() != "true" {
                return Err("the key of this member belongs to another session".into());
            }
        }
        self.presence = Some(Presence { said: said.to_vec(), ..presence });
        Ok(())
    }

    async fn session(&self, member: &str) -> Result<String, StoreError> {
        let request = json!({
            "Name": format!("sluice {member}"), "TTL": format!("{}s", self.ttl_s), "Behavior": "delete", "LockDelay": "0s",
        });
        let answer = self.agent.put("/v1/session/create", request.to_string().into()).await?;
        let session: Session = serde_json::from_str(&answer.good().await?.whole().await?).map_err(garbage)?;
        Ok(session.id)
    }

    /// Whether the session lives.
    async fn renew(&self, session: &str) -> Result<bool, StoreError> {
        let answer = self.agent.put(&format!("/v1/session/renew/{session}"), Bytes::new()).await?;
        match answer.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(refusal(answer).await),
        }
    }

    /// See [`super::Client::leave`].
    pub(super) async fn leave(&mut self) {
        if let Some(Presence { session, .. }) = self.presence.take() {
            let _ = self.agent.put(&format!("/v1/session/destroy/{session}"), Bytes::new()).await;
        }
    }
}

impl Agent {
    fn new(config: &ConsulStore) -> Result<Self, RemoteError> {
        let servers = Servers::new(vec![config.url.clone()], config.ca_file.as_deref(), None)?;
        Ok(Self { config: config.clone(), servers })
    }

    /// The index, and the pairs of a folder by their names in it.
    async fn list(
        &self,
        folder: &str,
        more: &str,
        patience: Duration,
    ) -> Result<(u64, Vec<(String, Pair)>), StoreError> {
        let target = self.target(&format!("{folder}?recurse{more}"));
        let answer = self.servers.look(&target, &self.headers()?, patience).await?;
        let index = answer.header("x-consul-index").and_then(|index| index.parse().ok()).unwrap_or(0);
        // An empty folder does not exist.
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok((index, Vec::new()));
        }
        let pairs: Vec<Pair> = serde_json::from_str(&answer.good().await?.whole().await?).map_err(garbage)?;
        let prefix = format!("{}{folder}", self.config.prefix);
        let relative = |pair: Pair| Some((pair.key.strip_prefix(&prefix)?.to_owned(), pair));
        Ok((index, pairs.into_iter().filter_map(relative).collect()))
    }

    async fn put(&self, target: &str, body: Bytes) -> Result<Answer, StoreError> {
        Ok(self.servers.put(target, &self.headers()?, body).await?)
    }

    fn target(&self, key: &str) -> String {
        format!("/v1/kv/{}{key}", self.config.prefix)
    }

    fn headers(&self) -> Result<HeaderMap, RemoteError> {
        let mut headers = HeaderMap::new();
        if let Some(path) = &self.config.token_file {
            // It may have been replaced.
            add_secret(&mut headers, "x-consul-token", &secret(path)?)?;
        }
        Ok(headers)
    }
}

impl Pair {
    fn value(&self) -> Result<Vec<u8>, StoreError> {
        let value = self.value.as_deref().unwrap_or_default();
        BASE64.decode(value.as_bytes()).map_err(|error| format!("not base64: {error}").into())
    }
}

async fn refusal(answer: Answer) -> StoreError {
    let status = answer.status();
    match answer.good().await {
        Ok(_) => format!("status {status}").into(),
        Err(error) => error.into(),
    }
}

fn garbage(error: serde_json::Error) -> StoreError {
    format!("not what Consul answers: {error}").into()
}
