//! `store`: where the members of a fleet keep what they share.

use std::path::PathBuf;

use super::codec::{File, Flag, Optional, Own, checked, keys, map, number};
use super::defaults::MINUTE_MS;
use super::discovery::SERVER_URL;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::text::{self, Check};
use super::{Address, EtcdSource, HttpUrl};

/// Where Consul's agent listens.
const CONSUL_PORT: u16 = 8500;
/// Where Redis listens.
const REDIS_PORT: u16 = 6379;
/// Longest name of a member.
const MEMBER_BYTES_MAX: usize = 64;

/// What a fleet shares, and by which engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Exactly one of the following three is set: etcd.
    pub etcd: Option<EtcdSource>,
    /// Consul.
    pub consul: Option<ConsulStore>,
    /// Redis or Valkey.
    pub redis: Option<RedisStore>,
    /// What others call this process; `None` is the name of the host.
    pub member: Option<String>,
    /// A file with the keys that encrypt certificates and the account, one in each line.
    pub key_file: Option<PathBuf>,
    /// How long others count on a member that the store does not hear from, in milliseconds.
    pub member_ttl_ms: u64,
    /// How long a start waits for the store, in milliseconds.
    pub first_timeout_ms: u64,
    /// How long a command waits for members beyond its own time limits, in milliseconds.
    pub confirm_timeout_ms: u64,
}

/// The key-value store of Consul.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsulStore {
    /// The agent.
    pub url: HttpUrl,
    /// What the keys begin with.
    pub prefix: String,
    /// A file with the token.
    pub token_file: Option<PathBuf>,
    /// PEM: the trusted CAs; `None` uses the system's.
    pub ca_file: Option<PathBuf>,
}

/// A Redis or Valkey server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisStore {
    /// The server.
    pub address: Address,
    /// Whether it is reached by TLS.
    pub tls: bool,
    /// What the keys begin with.
    pub prefix: String,
    /// The number of the database.
    pub database: u32,
    /// The user.
    pub user: Option<String>,
    /// A file with the password.
    pub password_file: Option<PathBuf>,
    /// PEM: the trusted CAs; `None` uses the system's.
    pub ca_file: Option<PathBuf>,
}

/// The engine of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreEngine<'s> {
    /// etcd.
    Etcd(&'s EtcdSource),
    /// Consul.
    Consul(&'s ConsulStore),
    /// Redis.
    Redis(&'s RedisStore),
}

keys! { Store, settle has_one_engine {
    etcd: None, Optional(map());
    consul: None, Optional(map());
    redis: None, Optional(map());
    member: None, Optional(checked(member));
    key_file: None, Optional(File);
    // The shortest that Consul has. A deploy right after a crash waits as long.
    member_ttl_ms: 10_000, number(1000..=10 * MINUTE_MS);
    // Every store answers within milliseconds, or is away.
    first_timeout_ms: 5000, number(0..=MINUTE_MS);
    // Longer than a member takes to notice that a watch has ended, and to watch another server.
    confirm_timeout_ms: 15_000, number(1000..=10 * MINUTE_MS);
}}

keys! { ConsulStore {
    url: HttpUrl::here(CONSUL_PORT, "/"), SERVER_URL;
    token_file: None, Optional(File);
    ca_file: None, Optional(File);
} required {
    prefix: String::new(), "what the keys begin with, such as sluice/", checked(key);
}}

keys! { RedisStore, settle user_has_a_password {
    address: Address::Ip(([127, 0, 0, 1], REDIS_PORT).into()), REDIS_ADDRESS;
    tls: false, Flag;
    database: 0, number(0..=1_000_000);
    user: None, Optional(checked(text::field_value));
    password_file: None, Optional(File);
    ca_file: None, Optional(File);
} required {
    prefix: String::new(), "what the keys begin with, such as sluice:", checked(key);
}}

impl Store {
    /// The engine.
    pub fn engine(&self) -> Option<StoreEngine<'_>> {
        let Self { etcd, consul, redis, .. } = self;
        let engines = [
            etcd.as_ref().map(StoreEngine::Etcd),
            consul.as_ref().map(StoreEngine::Consul),
            redis.as_ref().map(StoreEngine::Redis),
        ];
        engines.into_iter().flatten().next()
    }
}

impl StoreEngine<'_> {
    /// What the keys begin with.
    pub fn prefix(&self) -> &str {
        match self {
            Self::Etcd(etcd) => &etcd.prefix,
            Self::Consul(consul) => &consul.prefix,
            Self::Redis(redis) => &redis.prefix,
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "etcd",
            Self::Consul(_) => "consul",
            Self::Redis(_) => "redis",
        }
    }
}

fn has_one_engine(store: &mut Store, fields: &mut Fields<'_>) {
    let given = [store.etcd.is_some(), store.consul.is_some(), store.redis.is_some()];
    if given.into_iter().filter(|is_set| *is_set).count() != 1 && !fields.is_broken() {
        fields.mistake("expected exactly one engine; write etcd, consul or redis");
    }
    if store.consul.is_some() && store.member_ttl_ms < 10_000 {
        fields.mistake("member_ttl is shorter than Consul allows; write at least 10s");
    }
}

fn user_has_a_password(redis: &mut RedisStore, fields: &mut Fields<'_>) {
    if redis.user.is_some() && redis.password_file.is_none() {
        fields.mistake("user has no password; write password_file");
    }
}

const REDIS_ADDRESS: Own<Address> =
    Own { read: address, write: |address| address.to_string().into(), shape: || Shape::TEXT };

fn address(item: &Item<'_>) -> Option<Address> {
    let text = item.text()?;
    let parsed = text.parse::<Address>();
    parsed.map_err(|message| item.mistake(message)).ok()
}

/// The name of a member, which is part of keys.
fn member(text: &str) -> Check {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if (1..=MEMBER_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_plain) {
        return Ok(());
    }
    Err(format!("{} is not a name; write up to 64 letters, digits, -, _ and .", quote(text)).into())
}

/// What may stand in a URL as it is.
fn key(text: &str) -> Check {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b':');
    let is_relative = !text.starts_with('/') && !text.contains("//") && !text.contains("..");
    if (1..=200).contains(&text.len()) && text.bytes().all(is_plain) && is_relative {
        return Ok(());
    }
    Err(format!("{} is no beginning of keys; write letters, digits, -, _, ., : and /", quote(text)).into())
}
