//! Addresses that are turned away for a while. Shared by all threads; survives a reload and an upgrade.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::share;

/// Keeps banned clients from connecting, before sluice sees them.
pub trait Barrier: Send + Sync {
    /// Keeps a client out for some time, wherever the barrier stands.
    fn keep_out(&self, client: IpAddr, left: Duration);
    /// Lets a client connect again.
    fn let_in(&self, client: IpAddr);
    /// Stands at a listening socket from now on.
    fn stand_at(&self, listener: BorrowedFd<'_>);
    /// Attempts to connect that were turned away.
    fn turned_away(&self) -> u64;
}

/// The banned addresses.
#[derive(Default)]
pub struct Bans {
    /// How many are listed, so that nobody takes the lock while none is.
    listed: AtomicUsize,
    bans: RwLock<HashMap<IpAddr, Ban>>,
    /// When the first ban of a full list ends, so that it is not searched before.
    first_end_ms: AtomicU64,
    turned_away: AtomicU64,
    not_listed: AtomicU64,
    barrier: OnceLock<Arc<dyn Barrier>>,
    is_paused: AtomicBool,
    /// Grows with each ban that begins, or ends on request.
    changes: AtomicU64,
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
    /// Attempts to connect that the barrier turned away; a client repeats each some times.
    pub dropped: u64,
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
        self.changes.fetch_add(1, Ordering::Relaxed);
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
        if bans.len() >= max && self.first_end_ms.load(Ordering::Relaxed) <= now_ms {
            bans.retain(|_, ban| ban.until_ms > now_ms);
            let first_end_ms = bans.values().map(|ban| ban.until_ms).min();
            self.first_end_ms.store(first_end_ms.unwrap_or(0), Ordering::Relaxed);
        }
        let result = if bans.len() < max {
            bans.insert(client, Ban { until_ms, by: by.to_owned() });
            self.first_end_ms.fetch_min(until_ms, Ordering::Relaxed);
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
        self.changes.fetch_add(1, Ordering::Relaxed);
        let mut bans = self.write();
        let removed = bans.remove(&share(client)).is_some_and(|ban| ban.until_ms > now_ms);
        self.listed.store(bans.len(), Ordering::Relaxed);
        drop(bans);
        // Whoever is kept out was read from the list under its lock, so before this.
        self.let_in(client);
        removed
    }

    /// Has a barrier keep out the clients that come although they are banned. Once in the life of the list.
    pub fn set_barrier(&self, barrier: Arc<dyn Barrier>) {
        let _ = self.barrier.set(barrier);
    }

    /// Has the barrier, if there is one, keep out a banned client that has come to a listening socket.
    pub fn keep_out(&self, client: IpAddr, listener: BorrowedFd<'_>, now_ms: u64) {
        let Some(barrier) = self.barrier.get() else { return };
        let client = share(client);
        let bans = self.read();
        if self.is_paused.load(Ordering::Relaxed) {
            return;
        }
        let left =
            bans.get(&client).and_then(|ban| ban.until_ms.checked_sub(now_ms)).filter(|left| *left > 0);
        if let Some(left) = left {
            barrier.keep_out(client, Duration::from_millis(left));
            barrier.stand_at(listener);
        }
    }

    /// Has the barrier stand at no further socket, or again: it would stand in the way of a process that takes the
    /// sockets over, which has one of its own. When this returns, it does not.
    pub fn pause_barrier(&self, is_paused: bool) {
        let _alone = self.write();
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Has the barrier let in the banned clients for which `is_spared` holds; they remain banned.
    pub fn spare(&self, is_spared: impl Fn(IpAddr) -> bool) {
        let bans = self.read();
        bans.keys().filter(|client| is_spared(**client)).for_each(|client| self.let_in(*client));
    }

    fn let_in(&self, client: IpAddr) {
        if let Some(barrier) = self.barrier.get() {
            barrier.let_in(share(client));
        }
    }

    /// Whether an address is banned. While none is, this costs one read of memory that nobody writes.
    pub fn holds(&self, client: IpAddr, now_ms: impl FnOnce() -> u64) -> bool {
        if self.listed.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let until_ms = self.read().get(&share(client)).map(|ban| ban.until_ms);
        until_ms.is_some_and(|until_ms| until_ms > now_ms())
    }

    /// A number that differs after a ban has begun, or has ended on request.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
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
            dropped: self.barrier.get().map_or(0, |barrier| barrier.turned_away()),
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
    use std::os::fd::AsFd;

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
        assert_eq!(bans.counts(60_500), BanCounts { listed: 2, not_listed: 1, ..BanCounts::default() });
        let listed: Vec<_> = bans.list(60_500).into_iter().map(|ban| (ban.client, ban.left_ms)).collect();
        assert_eq!(listed, [(ip("192.0.2.2"), 1500), (ip("192.0.2.3"), 60_000)]);
    }

    #[derive(Default)]
    struct Door {
        kept_out: RwLock<HashMap<IpAddr, Duration>>,
        places: AtomicUsize,
    }

    impl Barrier for Door {
        fn keep_out(&self, client: IpAddr, left: Duration) {
            self.kept_out.write().unwrap().insert(client, left);
        }

        fn let_in(&self, client: IpAddr) {
            self.kept_out.write().unwrap().remove(&client);
        }

        fn stand_at(&self, _: BorrowedFd<'_>) {
            self.places.fetch_add(1, Ordering::Relaxed);
        }

        fn turned_away(&self) -> u64 {
            7
        }
    }

    #[test]
    fn a_barrier_keeps_out_the_banned_clients_that_come() {
        let (bans, door, stdin) = (Bans::default(), Arc::new(Door::default()), std::io::stdin());
        let listener = stdin.as_fd();
        bans.set_barrier(Arc::<Door>::clone(&door));
        for client in ["192.0.2.1", "192.0.2.2", "2001:db8::1"] {
            bans.add(ip(client), MINUTE, 10, 0).unwrap();
        }
        assert!(door.kept_out.read().unwrap().is_empty(), "nobody has come");
        bans.keep_out(ip("2001:db8::2"), listener, 10_000);
        bans.keep_out(ip("192.0.2.1"), listener, 59_999);
        bans.keep_out(ip("192.0.2.2"), listener, 60_000);
        bans.keep_out(ip("192.0.2.3"), listener, 0);
        let kept = |client: &str| door.kept_out.read().unwrap().get(&ip(client)).map(Duration::as_millis);
        assert_eq!([kept("2001:db8::"), kept("192.0.2.1")], [Some(50_000), Some(1)]);
        assert_eq!([kept("192.0.2.2"), kept("192.0.2.3")], [None, None], "the ban is over, or never was");
        assert_eq!(door.places.load(Ordering::Relaxed), 2);
        bans.pause_barrier(true);
        bans.keep_out(ip("192.0.2.1"), listener, 0);
        assert_eq!((door.places.load(Ordering::Relaxed), kept("192.0.2.1")), (2, Some(1)), "it is paused");
        bans.pause_barrier(false);
        bans.spare(|client| client.is_ipv6());
        assert_eq!([kept("2001:db8::"), kept("192.0.2.1")], [None, Some(1)]);
        assert!(bans.remove(ip("192.0.2.1"), 0) && kept("192.0.2.1").is_none());
        assert_eq!(bans.counts(0).dropped, 7);
    }
}
