//! Rate limits of a route, and bans: requests that wait, and requests that are refused for how many came.

use std::time::Duration;

use sluice_config::{Excess, HashKey};
use sluice_core::clock;
use sluice_core::error::Reason;
use sluice_core::rate_limit::{RateLimiter, Verdict};

use super::account::Account;
use super::request::cookie;
use super::{Connection, Next};
use crate::body::Transfer;
use crate::response::Local;
use crate::snapshot::RouteEntry;

impl Connection {
    /// Counts the request for every limit of its route, and waits if it came too early. Returns what follows if it is
    /// refused.
    pub(super) async fn pace(
        &mut self,
        entry: &RouteEntry,
        account: &Account,
        transfer: &mut Transfer,
    ) -> Option<Next> {
        let now_ns = clock::now_ns();
        let mut wait = Duration::ZERO;
        for limiter in &entry.limiters {
            let client = limiter.client(account.client, |key| self.key_value(key));
            match limiter.count(client, now_ns) {
                Verdict::Within => {}
                Verdict::Wait(longer) => wait = wait.max(longer),
                Verdict::Beyond(after) => {
                    return Some(self.refuse_beyond(limiter, after, account, transfer).await);
                }
            }
        }
        if wait.is_zero() || self.unless_gone(tokio::time::sleep(wait), transfer).await.is_some() {
            return None;
        }
        Some(self.leave(account))
    }

    /// The value that a limit counts by, unless it is the address.
    fn key_value(&self, key: &HashKey) -> Option<&[u8]> {
        let head = &self.session.head;
        match key {
            HashKey::ClientAddress => None,
            HashKey::Header(name) => head.get(name.as_bytes()),
            HashKey::Cookie(name) => cookie(head.get(b"cookie")?, name.as_bytes()),
        }
    }

    async fn refuse_beyond(
        &mut self,
        limiter: &RateLimiter,
        mut after: Duration,
        account: &Account,
        transfer: &mut Transfer,
    ) -> Next {
        let is_banned = limiter.config.then == Excess::Ban && self.ban(limiter, account);
        if is_banned {
            after = Duration::from_millis(limiter.config.ban_ms);
        }
        let reason = Reason::RateLimited;
        let local = Local::reason(reason).with_fields(limiter.fields(after));
        if is_banned {
            self.answer_and_record(account, &local, false, Some(reason)).await;
            return self.last_answer(transfer);
        }
        self.answer_locally(account, &local, Some(reason), transfer).await
    }

    /// Bans the client; false if it is a proxy, behind which there are others, or if the list is full. An address of
    /// loopback is nearly always a proxy that nobody has listed.
    fn ban(&self, limiter: &RateLimiter, account: &Account) -> bool {
        let snapshot = &account.snapshot;
        if snapshot.trusts(&account.client) || account.client.is_loopback() {
            return false;
        }
        let ban = (Duration::from_millis(limiter.config.ban_ms), limiter.name.as_str());
        let added = snapshot.bans.add(account.client, ban, snapshot.config.bans_max, clock::now_ms());
        if added == Ok(true) {
            limiter.count_ban();
            let (limit, client) = (&limiter.name, account.client);
            tracing::info!(%client, limit, ban_ms = limiter.config.ban_ms, "banned a client");
        }
        added.is_ok()
    }

    /// Whether the client of a request is banned. A proxy never is: there are others behind it.
    pub(super) fn is_banned(&self, account: &Account) -> bool {
        let is_banned = account.snapshot.bans.holds(account.client, clock::now_ms)
            && !account.snapshot.trusts(&account.client);
        if is_banned {
            account.snapshot.bans.count_turned_away();
        }
        is_banned
    }
}
