//! Addresses that are turned away for a while. Shared by all threads; survives a reload and an upgrade.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::share;

/// The banned addresses.
#[derive(Default)]
pub struct Bans {
    /// How many are listed, so that nobody takes the lock while none is.
    listed: AtomicUsize,
    bans: RwLock<HashMap<IpAddr, Ban>>,
    turned_away: AtomicU64,
    not_listed: AtomicU64,
}

struct Ban {
    until_ms: u64,
    by: String,
}

/// A ban as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedBan {
    /// The address; a v6 address stands for its /64.
    pub client: IpAddr,
    /// What is left of it, in milliseconds.
    pub left_ms: u64,
    /// The rate limit that banned it, or `operator`.
    pub by: String,
}

/// Counts since the start, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BanCounts {
    /// Addresses that are banned now.
    pub listed: u64,
    /// Connections and requests that were turned away.
    pub turned_away: u64,
    /// Clients that were not banned because the list was full.
    pub not_listed: u64,
}

/// The list is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{max} addresses are banned already, which is the maximum (bans_max)")]
pub struct BansFull {
    /// The maximum.
    pub max: usize,
}

impl Bans {
    /// Bans an address for some time, or for longer than before, if fewer than `max` are banned. Tells whether it was
    /// not banned yet.
    ///
    /// # Errors
    /// When the list is full.
    pub fn add(
        &self,
        client: IpAddr,
        (time, by): (Duration, &str),
        max: usize,
        now_ms: u64,
    ) -> Result<bool, BansFull> {
        let client = share(client);
        let until_ms = now_ms.saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let mut bans = self.write();
        if let Some(ban) = bans.get_mut(&client) {
            let is_new = ban.until_ms <= now_ms;
            if ban.until_ms < until_ms {
                *ban = Ban { until_ms, by: by.to_owned() };
            }
            return Ok(is_new);
        }
        if bans.len() >= max {
            bans.retain(|_, ban| ban.until_ms > now_ms);
        }
        let result = if bans.len() < max {
            bans.insert(client, Ban { until_ms, by: by.to_owned() });
            Ok(true)
        } else {
            self.not_listed.fetch_add(1, Ordering::Relaxed);
            Err(BansFull { max })
        };
        self.listed.store(bans.len(), Ordering::Relaxed);
        result
    }

    /// Ends a ban; tells whether there was one.
    pub fn remove(&self, client: IpAddr, now_ms: u64) -> bool {
        let mut bans = self.write();
        let removed = bans.remove(&share(client)).is_some_and(|ban| ban.until_ms > now_ms);
        self.listed.store(bans.len(), Ordering::Relaxed);
        removed
    }

    /// Whether an address is banned. While none is, this costs one read of memory that nobody writes.
    pub fn holds(&self, client: IpAddr, now_ms: impl FnOnce() -> u64) -> bool {
        if self.listed.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let until_ms = self.read().get(&share(client)).map(|ban| ban.until_ms);
        until_ms.is_some_and(|until_ms| until_ms > now_ms())
    }

    /// Counts a connection or request that was turned away.
    pub fn count_turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// The bans that are in force, by address.
    pub fn list(&self, now_ms: u64) -> Vec<ListedBan> {
        let bans = self.read();
        let mut list: Vec<_> = bans
            .iter()
            .filter(|(_, ban)| ban.until_ms > now_ms)
            .map(|(client, ban)| ListedBan {
                client: *client,
                left_ms: ban.until_ms - now_ms,
                by: ban.by.clone(),
            })
            .collect();
        drop(bans);
        list.sort_by_key(|ban| ban.client);
        list
    }

    /// The counts. Forgets bans that are over.
    pub fn counts(&self, now_ms: u64) -> BanCounts {
        let mut listed = self.listed.load(Ordering::Relaxed);
        if listed > 0 {
            let mut bans = self.write();
            bans.retain(|_, ban| ban.until_ms > now_ms);
            listed = bans.len();
            self.listed.store(listed, Ordering::Relaxed);
        }
        BanCounts {
            listed: listed as u64,
            turned_away: self.turned_away.load(Ordering::Relaxed),
            not_listed: self.not_listed.load(Ordering::Relaxed),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<IpAddr, Ban>> {
        self.bans.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<IpAddr, Ban>> {
        self.bans.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MINUTE: (Duration, &str) = (Duration::from_secs(60), "login");

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_ban_ends_by_itself_or_on_request() {
        let bans = Bans::default();
        assert!(!bans.holds(ip("192.0.2.1"), || unreachable!("nobody is banned")));
        assert_eq!(bans.add(ip("192.0.2.1"), MINUTE, 10, 0), Ok(true));
        assert_eq!(bans.add(ip("192.0.2.1"), MINUTE, 10, 1), Ok(false));
        assert!(bans.holds(ip("::ffff:192.0.2.1"), || 60_000) && !bans.holds(ip("192.0.2.2"), || 0));
        assert!(!bans.holds(ip("192.0.2.1"), || 60_001));
        assert_eq!(bans.counts(60_001).listed, 0);
        bans.add(ip("2001:db8::1"), MINUTE, 10, 0).unwrap();
        assert!(bans.holds(ip("2001:db8::ffff:1"), || 0) && !bans.holds(ip("2001:db8:0:1::1"), || 0));
        assert!(bans.remove(ip("2001:db8::2"), 0) && !bans.remove(ip("2001:db8::2"), 0));
    }

    #[test]
    fn a_full_list_takes_more_when_bans_are_over() {
        let bans = Bans::default();
        bans.add(ip("192.0.2.1"), MINUTE, 2, 0).unwrap();
        bans.add(ip("192.0.2.2"), MINUTE, 2, 1000).unwrap();
        assert_eq!(bans.add(ip("192.0.2.3"), MINUTE, 2, 1000), Err(BansFull { max: 2 }));
        assert_eq!(bans.add(ip("192.0.2.2"), MINUTE, 2, 2000), Ok(false));
        assert_eq!(bans.add(ip("192.0.2.3"), MINUTE, 2, 60_500), Ok(true));
        assert_eq!(bans.counts(60_500), BanCounts { listed: 2, turned_away: 0, not_listed: 1 });
        let listed: Vec<_> = bans.list(60_500).into_iter().map(|ban| (ban.client, ban.left_ms)).collect();
        assert_eq!(listed, [(ip("192.0.2.2"), 1500), (ip("192.0.2.3"), 60_000)]);
    }
}
