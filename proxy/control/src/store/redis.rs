//! Redis and Valkey as a store: scripts compare and change at once, and publish what has changed.
//!
//! A server without persistence may come back empty: versions are times, so that none is ever used twice, and the members
//! give back what was lost.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{ErrorKind, FromRedisValue, RedisConnectionInfo, RedisError, Script, ScriptInvocation};
use rustls::ClientConfig;
use sluice_config::{Address, HttpUrl, RedisStore};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Commit, Item, KEYS_MAX, Outcome, StoreError, Update};
use crate::outbound::{self, Duplex};
use crate::remote::http::{PATIENCE, client_config, secret};

/// How long a subscription is believed: a connection that is cut off says nothing.
const LIFE: Duration = Duration::from_secs(60);
/// How often it is checked meanwhile whether something was missed.
const CHECK: Duration = Duration::from_secs(15);

/// Keys: values, versions, the last version. Arguments: the channel, checks, puts and deletes, each with their count.
const COMMIT: &str = "
local at = 1
local function take() at = at + 1 return ARGV[at] end
for _ = 1, tonumber(take()) do
    local key, version = take(), take()
    if (redis.call('HGET', KEYS[2], key) or '0') ~= version then return 0 end
end
local now = redis.call('TIME')
local before = redis.call('GET', KEYS[3]) or '0'
local version = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
version = string.format('%.0f', math.max(version, tonumber(before) + 1))
redis.call('SET', KEYS[3], version)
local changed = {version, before}
for _ = 1, tonumber(take()) do
    local key, value = take(), take()
    redis.call('HSET', KEYS[1], key, value)
    redis.call('HSET', KEYS[2], key, version)
    table.insert(changed, key)
end
for _ = 1, tonumber(take()) do
    local key = take()
    redis.call('HDEL', KEYS[1], key)
    redis.call('HDEL', KEYS[2], key)
    table.insert(changed, key)
end
redis.call('PUBLISH', ARGV[1], table.concat(changed, '\\n'))
return 1";

/// The last version, and every key with its version and its value, at one moment.
const READ_ALL: &str = "
local found = {redis.call('GET', KEYS[3]) or '0'}
local versions = redis.call('HGETALL', KEYS[2])
for at = 1, #versions, 2 do
    table.insert(found, versions[at])
    table.insert(found, versions[at + 1])
    table.insert(found, redis.call('HGET', KEYS[1], versions[at]) or '')
end
return found";

/// The same of some keys; those that are gone have the version 0.
const READ_SOME: &str = "
local found = {redis.call('GET', KEYS[3]) or '0'}
for _, key in ipairs(ARGV) do
    table.insert(found, key)
    table.insert(found, redis.call('HGET', KEYS[2], key) or '0')
    table.insert(found, redis.call('HGET', KEYS[1], key) or '')
end
return found";

/// Keys: what members say, and until when. Arguments: the member, what it says, and for how many milliseconds.
const ANNOUNCE: &str = "
local now = redis.call('TIME')
now = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.0f', now + tonumber(ARGV[3])), ARGV[1])
return 1";

/// What the members say that are there; forgets the others.
const MEMBERS: &str = "
local now = redis.call('TIME')
now = string.format('%.0f', tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000))
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
    redis.call('HDEL', KEYS[1], gone)
    redis.call('ZREM', KEYS[2], gone)
end
return redis.call('HGETALL', KEYS[1])";

/// Forgets a member.
const LEAVE: &str = "
redis.call('HDEL', KEYS[1], ARGV[1])
return redis.call('ZREM', KEYS[2], ARGV[1])";

/// How a server is reached.
pub(super) struct Server {
    config: RedisStore,
    tls: Option<Arc<ClientConfig>>,
}

/// Commands over one connection.
struct Commands {
    server: Server,
    open: Option<OpenConnection>,
}

pub(super) struct OpenConnection {
    pub(super) connection: MultiplexedConnection,
    pub(super) driver: JoinHandle<()>,
}

/// Follows the shared state.
pub(crate) struct RedisWatcher {
    commands: Commands,
    subscribed: Option<(PubSub, Instant)>,
    /// The last version that was seen.
    seen: u64,
}

/// Changes the shared state.
pub(crate) struct RedisClient {
    commands: Commands,
    ttl_ms: u64,
    member: Option<String>,
}

impl RedisWatcher {
    pub(super) fn new(config: &RedisStore) -> Result<Self, StoreError> {
        Ok(Self { commands: Commands::new(config)?, subscribed: None, seen: 0 })
    }

    /// See [`super::Watcher::next`].
    pub(super) async fn next(&mut self) -> Result<Update, StoreError> {
        let update = self.attempt().await;
        if update.is_err() {
            self.subscribed = None;
        }
        update
    }

    async fn attempt(&mut self) -> Result<Update, StoreError> {
        loop {
            let Some((subscribed, until)) = &mut self.subscribed else { return self.begin().await };
            let until = *until;
            let check = (Instant::now() + CHECK).min(until);
            let message = timeout_at(check, subscribed.on_message().next()).await;
            match message {
                Ok(Some(message)) => {
                    let changed: String = message.get_payload().map_err(said)?;
                    if let Some(update) = self.read_changed(&changed).await? {
                        return Ok(update);
                    }
                }
                Ok(None) => return Err("the connection is lost".into()),
                Err(_) if Instant::now() >= until => return self.begin().await,
                Err(_) => {
                    if self.last_version().await? != self.seen {
                        return self.begin().await;
                    }
                }
            }
        }
    }

    /// Reads everything, after the subscription so that nothing is missed in between.
    async fn begin(&mut self) -> Result<Update, StoreError> {
        self.subscribed = None;
        let mut subscribed = self.commands.server.subscribe().await?;
        let channel = self.commands.server.key("changes");
        in_time(subscribed.subscribe(channel)).await?;
        let all = self.read_all().await?;
        self.subscribed = Some((subscribed, Instant::now() + LIFE));
        Ok(all)
    }

    async fn read_all(&mut self) -> Result<Update, StoreError> {
        let (seen, found) = self.commands.read(READ_ALL, &[]).await?;
        self.seen = seen;
        Ok(Update::All(found.into_iter().filter_map(|(key, item)| Some((key, item?))).collect()))
    }

    /// Reads what a message names: the version, the one before, and the keys. `None` if it is known.
    async fn read_changed(&mut self, changed: &str) -> Result<Option<Update>, StoreError> {
        let mut lines = changed.split('\n');
        let mut number = || lines.next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(u64::MAX);
        let (version, before) = (number(), number());
        if version <= self.seen {
            return Ok(None);
        }
        if before != self.seen {
            // Something was missed, or the server has lost what it had.
            return self.read_all().await.map(Some);
        }
        let keys: Vec<&str> = lines.collect();
        let (last, found) = self.commands.read(READ_SOME, &keys).await?;
        if last != version {
            // These keys may be of a later change, whose other keys are not known yet.
            return self.read_all().await.map(Some);
        }
        self.seen = version;
        Ok(Some(Update::Changes(found)))
    }

    async fn last_version(&mut self) -> Result<u64, StoreError> {
        Ok(self.commands.read(READ_SOME, &[]).await?.0)
    }
}

impl RedisClient {
    pub(super) fn new(config: &RedisStore, ttl_ms: u64) -> Result<Self, StoreError> {
        Ok(Self { commands: Commands::new(config)?, ttl_ms, member: None })
    }

    /// See [`super::Client::commit`].
    pub(super) async fn commit(&mut self, commit: &Commit) -> Result<Outcome, StoreError> {
        let script = Script::new(COMMIT);
        let mut call = self.commands.server.state(&script);
        call.arg(self.commands.server.key("changes")).arg(commit.checks.len());
        commit.checks.iter().for_each(|(key, version)| {
            call.arg(key).arg(version.to_string());
        });
        call.arg(commit.puts.len());
        commit.puts.iter().for_each(|(key, value)| {
            call.arg(key).arg(value);
        });
        call.arg(commit.deletes.len());
        commit.deletes.iter().for_each(|key| {
            call.arg(key);
        });
        let made: u64 = self.commands.call(call).await?;
        Ok(if made == 1 { Outcome::Made } else { Outcome::Conflict })
    }

    /// See [`super::Client::members`].
    pub(super) async fn members(&mut self) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        let script = Script::new(MEMBERS);
        let call = self.commands.server.presence(&script);
        self.commands.call(call).await
    }

    /// See [`super::Client::announce`].
    pub(super) async fn announce(&mut self, member: &str, said: &[u8]) -> Result<(), StoreError> {
        self.member = Some(member.to_owned());
        let script = Script::new(ANNOUNCE);
        let mut call = self.commands.server.presence(&script);
        call.arg(member).arg(said).arg(self.ttl_ms);
        self.commands.call::<u64>(call).await.map(drop)
    }

    /// See [`super::Client::leave`].
    pub(super) async fn leave(&mut self) {
        let Some(member) = self.member.take() else { return };
        let script = Script::new(LEAVE);
        let mut call = self.commands.server.presence(&script);
        call.arg(member);
        let _ = self.commands.call::<u64>(call).await;
    }
}

impl Commands {
    fn new(config: &RedisStore) -> Result<Self, StoreError> {
        Ok(Self { server: Server::new(config)?, open: None })
    }

    /// Keys with their versions and values, after the last version.
    async fn read(
        &mut self,
        script: &str,
        keys: &[&str],
    ) -> Result<(u64, Vec<(String, Option<Item>)>), StoreError> {
        let script = Script::new(script);
        let mut call = self.server.state(&script);
        keys.iter().for_each(|key| {
            call.arg(key);
        });
        let found: Vec<Vec<u8>> = self.call(call).await?;
        let (last, found) = found.split_first().ok_or("an empty answer")?;
        if found.len() > 3 * KEYS_MAX {
            return Err(format!("more than {KEYS_MAX} keys").into());
        }
        let mut items = Vec::with_capacity(found.len() / 3);
        for one in found.chunks_exact(3) {
            // Others are not of a member.
            let Ok(key) = String::from_utf8(one[0].clone()) else { continue };
            let version = number(&one[1])?;
            items.push((key, (version > 0).then(|| Item { value: one[2].clone(), version })));
        }
        Ok((number(last)?, items))
    }

    /// Calls a script; after a failure, the next one has a new connection.
    async fn call<T: FromRedisValue>(&mut self, call: ScriptInvocation<'_>) -> Result<T, StoreError> {
        let mut open = match self.open.take() {
            Some(open) if !open.driver.is_finished() => open,
            _ => self.server.open().await?,
        };
        let answer = in_time(call.invoke_async(&mut open.connection)).await?;
        self.open = Some(open);
        Ok(answer)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Server {
    pub(super) fn new(config: &RedisStore) -> Result<Self, StoreError> {
        let ca_file = config.ca_file.as_deref();
        let tls = config.tls.then(|| client_config(ca_file, None)).transpose()?.map(Arc::new);
        Ok(Self { config: config.clone(), tls })
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.config.prefix)
    }

    fn state<'s>(&self, script: &'s Script) -> ScriptInvocation<'s> {
        let mut call = script.key(self.key("values"));
        call.key(self.key("versions")).key(self.key("version"));
        call
    }

    fn presence<'s>(&self, script: &'s Script) -> ScriptInvocation<'s> {
        let mut call = script.key(self.key("members"));
        call.key(self.key("members-until"));
        call
    }

    pub(super) async fn open(&self) -> Result<OpenConnection, StoreError> {
        let (stream, info) = (self.connect().await?, self.info()?);
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let made = MultiplexedConnection::new_with_config(&info, stream, config);
        let (connection, driver) = in_time(made).await?;
        Ok(OpenConnection { connection, driver: tokio::spawn(driver) })
    }

    async fn subscribe(&self) -> Result<PubSub, StoreError> {
        let (stream, info) = (self.connect().await?, self.info()?);
        in_time(PubSub::new(&info, stream)).await
    }

    async fn connect(&self) -> Result<Box<dyn Duplex>, StoreError> {
        let RedisStore { address, tls, .. } = &self.config;
        let failed = |error: std::io::Error| StoreError::from(format!("{address}: {error}"));
        if let Address::Unix(path) = address {
            return connect_unix(path).await.map_err(failed);
        }
        let url = HttpUrl { tls: *tls, address: address.clone(), path: "/".to_owned() };
        let stream = timeout(PATIENCE, outbound::connect_by(&url, self.tls.as_ref())).await;
        let stream = stream.map_err(|_| format!("{address}: no connection in time"))?;
        Ok(stream.map_err(failed)?.into_inner())
    }

    fn info(&self) -> Result<RedisConnectionInfo, StoreError> {
        let mut info = RedisConnectionInfo::default().set_db(self.config.database.into());
        if let Some(user) = &self.config.user {
            info = info.set_username(user);
        }
        if let Some(path) = &self.config.password_file {
            // It may have been replaced.
            info = info.set_password(secret(path)?);
        }
        Ok(info)
    }
}

async fn connect_unix(path: &Path) -> std::io::Result<Box<dyn Duplex>> {
    Ok(Box::new(UnixStream::connect(path).await?))
}

async fn in_time<T>(asked: impl Future<Output = Result<T, RedisError>>) -> Result<T, StoreError> {
    let answer = timeout(PATIENCE, asked).await;
    answer.map_err(|_| StoreError::from("no answer in time"))?.map_err(said)
}

fn number(text: &[u8]) -> Result<u64, StoreError> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| "a version is no number".into())
}

/// An error without what the server quotes of a command, which may be a secret.
pub(super) fn said(error: RedisError) -> StoreError {
    match error.kind() {
        ErrorKind::AuthenticationFailed => {
            StoreError::refusal("the server does not accept user and password")
        }
        // The server has answered, as it does when it has no memory left.
        _ if error.code().is_some() => StoreError::refusal(error.to_string()),
        _ => error.to_string().into(),
    }
}
