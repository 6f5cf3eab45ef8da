//! The engines by which a fleet shares what it must: etcd, Consul and Redis.
//!
//! Each has what `Watcher` and `Client` need: keys below a prefix that all members watch, changes that are made together
//! or not at all and only if nobody else has made one meanwhile, and members whose entries vanish with them. Knows
//! nothing of what the values mean.

mod consul;
mod error;
mod etcd;
mod rates;
mod redis;

use std::collections::BTreeMap;

use sluice_config::{Store, StoreEngine};

pub(crate) use error::StoreError;
pub(crate) use rates::start as start_rates;

/// What all members watch begins with this, after the prefix.
const STATE: &str = "state/";
/// What vanishes with each member begins with this.
const MEMBERS: &str = "members/";
/// Most keys that are watched.
const KEYS_MAX: usize = 200_000;
/// Most changes of one commit: Consul allows 64, checks included.
pub(crate) const CHANGES_MAX: usize = 24;

/// A value, and the version of its key, for [`Commit::checks`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Item {
    pub(crate) value: Vec<u8>,
    /// Not 0.
    pub(crate) version: u64,
}

/// What a watcher has seen.
#[derive(Debug)]
pub(crate) enum Update {
    /// Everything.
    All(BTreeMap<String, Item>),
    /// What has changed since; `None` is a key that is gone.
    Changes(Vec<(String, Option<Item>)>),
}

/// Changes that are made together or not at all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commit {
    /// Keys that must have these versions; 0 is one that must not exist.
    pub(crate) checks: Vec<(String, u64)>,
    /// Keys that get these values.
    pub(crate) puts: Vec<(String, Vec<u8>)>,
    /// Keys that are removed.
    pub(crate) deletes: Vec<String>,
}

/// What has become of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is made.
    Made,
    /// A key has another version.
    Conflict,
}

/// Follows the shared state.
pub(crate) enum Watcher {
    Consul(Box<consul::ConsulWatcher>),
    Etcd(Box<etcd::EtcdWatcher>),
    Redis(Box<redis::RedisWatcher>),
}

/// Changes the shared state, and lists the members.
pub(crate) enum Client {
    Consul(Box<consul::ConsulClient>),
    Etcd(Box<etcd::EtcdStore>),
    Redis(Box<redis::RedisClient>),
}

impl Watcher {
    /// For the engine of this configuration.
    ///
    /// # Errors
    /// A file that it names cannot be used.
    pub(crate) fn new(config: &Store) -> Result<Self, StoreError> {
        match config.engine() {
            Some(StoreEngine::Consul(config)) => {
                Ok(Self::Consul(Box::new(consul::ConsulWatcher::new(config)?)))
            }
            Some(StoreEngine::Etcd(config)) => Ok(Self::Etcd(Box::new(etcd::EtcdWatcher::new(config)?))),
            Some(StoreEngine::Redis(config)) => Ok(Self::Redis(Box::new(redis::RedisWatcher::new(config)?))),
            None => Err("no engine is configured".into()),
        }
    }

    /// Everything at first, then what changes. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// Why nothing can be seen. What follows is everything again.
    pub(crate) async fn next(&mut self) -> Result<Update, StoreError> {
        match self {
            Self::Consul(watcher) => watcher.next().await,
            Self::Etcd(watcher) => watcher.next().await,
            Self::Redis(watcher) => watcher.next().await,
        }
    }
}

impl Client {
    /// For the engine of this configuration.
    ///
    /// # Errors
    /// A file that it names cannot be used.
    pub(crate) fn new(config: &Store) -> Result<Self, StoreError> {
        match config.engine() {
            Some(StoreEngine::Consul(engine)) => {
                Ok(Self::Consul(Box::new(consul::ConsulClient::new(engine, config.member_ttl_ms)?)))
            }
            Some(StoreEngine::Etcd(engine)) => {
                Ok(Self::Etcd(Box::new(etcd::EtcdStore::new(engine, config.member_ttl_ms)?)))
            }
            Some(StoreEngine::Redis(engine)) => {
                Ok(Self::Redis(Box::new(redis::RedisClient::new(engine, config.member_ttl_ms)?)))
            }
            None => Err("no engine is configured".into()),
        }
    }

    /// Makes changes.
    ///
    /// # Errors
    /// The engine did not say what has become of them: they may be made.
    pub(crate) async fn commit(&mut self, commit: &Commit) -> Result<Outcome, StoreError> {
        match self {
            Self::Consul(store) => store.commit(commit).await,
            Self::Etcd(store) => store.commit(commit).await,
            Self::Redis(store) => store.commit(commit).await,
        }
    }

    /// The members that are there, and what they say.
    ///
    /// # Errors
    /// They are not known.
    pub(crate) async fn members(&mut self) -> Result<BTreeMap<String, Vec<u8>>, StoreError> {
        match self {
            Self::Consul(store) => store.members().await,
            Self::Etcd(store) => store.members().await,
            Self::Redis(store) => store.members().await,
        }
    }

    /// Says this for a member, until `member_ttl` after the last time.
    ///
    /// # Errors
    /// It may not have been heard.
    pub(crate) async fn announce(&mut self, member: &str, said: &[u8]) -> Result<(), StoreError> {
        match self {
            Self::Consul(store) => store.announce(member, said).await,
            Self::Etcd(store) => store.announce(member, said).await,
            Self::Redis(store) => store.announce(member, said).await,
        }
    }

    /// Says that a member is gone.
    pub(crate) async fn leave(&mut self) {
        match self {
            Self::Consul(store) => store.leave().await,
            Self::Etcd(store) => store.leave().await,
            Self::Redis(store) => store.leave().await,
        }
    }
}
