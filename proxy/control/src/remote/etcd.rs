//! A client of etcd's JSON gateway: requests to one member of a list, and to another one when it fails.

use bytes::Bytes;
use data_encoding::BASE64;
use http::HeaderMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_config::EtcdSource;

use super::RemoteError;
use super::http::{Answer, Servers, add_secret, secret};

/// The members of etcd, of which one is asked.
pub(crate) struct EtcdClient {
    config: EtcdSource,
    servers: Servers,
    token: Option<String>,
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

/// A list of keys, with the revision of the whole store.
#[derive(Deserialize)]
pub(crate) struct Range {
    header: Header,
    #[serde(default)]
    pub(crate) kvs: Vec<KeyValue>,
    #[serde(default)]
    count: Option<String>,
}

/// What begins every answer.
#[derive(Deserialize)]
pub(crate) struct Header {
    revision: String,
}

/// A key as the gateway writes it: in base64, as its value; numbers as text.
#[derive(Deserialize)]
pub(crate) struct KeyValue {
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) value: String,
    #[serde(default)]
    mod_revision: String,
}

/// A line of a watch.
#[derive(Deserialize)]
struct Watched {
    result: Option<WatchResult>,
    error: Option<Value>,
}

/// What has happened since the line before.
#[derive(Deserialize)]
pub(crate) struct WatchResult {
    header: Header,
    #[serde(default)]
    canceled: bool,
    #[serde(default)]
    cancel_reason: String,
    #[serde(default)]
    pub(crate) events: Vec<Event>,
}

/// A key that was put or deleted.
#[derive(Deserialize)]
pub(crate) struct Event {
    #[serde(default, rename = "type")]
    kind: String,
    pub(crate) kv: KeyValue,
}

impl EtcdClient {
    /// For these members.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn new(config: &EtcdSource) -> Result<Self, RemoteError> {
        let (ca_file, certificate) = (config.ca_file.as_deref(), config.client_certificate.as_ref());
        let servers = Servers::new(config.endpoints.clone(), ca_file, certificate)?;
        Ok(Self { config: config.clone(), servers, token: None })
    }

    /// How many members there are.
    pub(crate) fn count(&self) -> usize {
        self.config.endpoints.len().max(1)
    }

    /// Asks another member from now on.
    pub(crate) fn rotate(&mut self) {
        self.token = None;
        self.servers.rotate();
    }

    /// Asks, and reads the whole answer.
    ///
    /// # Errors
    /// There is no answer, or it is a refusal.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &mut self,
        target: &str,
        request: &Value,
    ) -> Result<T, RemoteError> {
        let answer = self.begin(target, request).await?.whole().await?;
        Ok(serde_json::from_str(&answer).map_err(garbage)?)
    }

    /// Asks for an answer that does not end.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub(crate) async fn begin(&mut self, target: &str, request: &Value) -> Result<Answer, RemoteError> {
        if let Some((user, path)) = self.config.user.as_ref().zip(self.config.password_file.as_ref())
            && self.token.is_none()
        {
            let request = json!({"name": user, "password": secret(path)?});
            let answer = self.send("/v3/auth/authenticate", &request).await?.whole().await?;
            let token: Token = serde_json::from_str(&answer).map_err(garbage)?;
            self.token = Some(token.token);
        }
        self.send(target, request).await
    }

    async fn send(&self, target: &str, request: &Value) -> Result<Answer, RemoteError> {
        let mut headers = HeaderMap::new();
        // A member without a leader answers by what it knew; this makes it fail instead.
        headers.insert("grpc-metadata-hasleader", http::HeaderValue::from_static("true"));
        if let Some(token) = &self.token {
            add_secret(&mut headers, "authorization", token)?;
        }
        self.servers.post(target, &headers, Bytes::from(request.to_string())).await
    }
}

impl Range {
    /// The revision of the store when it answered.
    pub(crate) fn revision(&self) -> Result<u64, RemoteError> {
        number(&self.header.revision)
    }

    /// How many keys there are, of which the answer may have fewer.
    pub(crate) fn count(&self) -> Result<usize, RemoteError> {
        self.count.as_deref().map_or(Ok(0), number)
    }
}

impl KeyValue {
    /// The key.
    pub(crate) fn key(&self) -> Result<String, RemoteError> {
        String::from_utf8(decoded(&self.key)?).map_err(|error| error.to_string().into())
    }

    /// The value.
    pub(crate) fn value(&self) -> Result<Vec<u8>, RemoteError> {
        decoded(&self.value)
    }

    /// The revision at which it was put last.
    pub(crate) fn revision(&self) -> Result<u64, RemoteError> {
        number(&self.mod_revision)
    }
}

impl WatchResult {
    /// Reads a line.
    ///
    /// # Errors
    /// The watch has ended, or this is none.
    pub(crate) fn read(line: &str) -> Result<Self, RemoteError> {
        let watched: Watched = serde_json::from_str(line).map_err(garbage)?;
        if let Some(error) = watched.error {
            return Err(format!("the watch has failed: {error}").into());
        }
        let result = watched.result.ok_or("a line of the watch is empty")?;
        if result.canceled {
            return Err(format!("the watch was cancelled: {}", result.cancel_reason).into());
        }
        Ok(result)
    }

    /// The revision of the store.
    pub(crate) fn revision(&self) -> Result<u64, RemoteError> {
        number(&self.header.revision)
    }
}

impl Event {
    /// Whether the key is gone.
    pub(crate) fn is_delete(&self) -> bool {
        self.kind == "DELETE"
    }
}

/// The first of all keys with a prefix, and the first one after the last, as the gateway reads them.
pub(crate) fn range_of(prefix: &str) -> [String; 2] {
    let first = prefix.as_bytes();
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

fn decoded(text: &str) -> Result<Vec<u8>, RemoteError> {
    BASE64.decode(text.as_bytes()).map_err(|error| format!("not base64: {error}").into())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, RemoteError> {
    text.parse().map_err(|_| format!("{text:?} is no number").into())
}

fn garbage(error: serde_json::Error) -> String {
    format!("not what etcd answers: {error}")
}
