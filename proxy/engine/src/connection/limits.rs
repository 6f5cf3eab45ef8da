//! Rate limits of a route, and bans: requests that wait, and requests that are refused for how many came.

use std::borrow::Cow;
use std::time::Duration;

use percent_encoding::percent_decode;
use sluice_config::{Excess, HashKey};
use sluice_core::clock;
use sluice_core::error::Reason;
use sluice_core::rate_limit::{RateLimiter, Verdict};

use super::account::Account;
use super::request::cookies;
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
        let mut now_ns = clock::now_ns();
        let mut wait = Duration::ZERO;
        for limiter in &entry.limiters {
            let value = self.key_value(&limiter.config.key, account);
            let client = limiter.client(account.client, value.as_deref());
            let verdict = match limiter.is_exact() {
                false => limiter.count(client, now_ns),
                true => {
                    let key = limiter.key(client);
                    let counting = limiter.count_exactly(key, now_ns);
                    let Some(verdict) = self.unless_gone(counting, transfer).await else {
                        return Some(self.leave(account));
                    };
                    now_ns = clock::now_ns();
                    verdict
                }
            };
            match verdict {
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

    /// The value that a limit counts by, unless it is the address, in one of its spellings. With several values the
    /// application might read another one, so there is none.
    fn key_value(&self, key: &HashKey, account: &Account) -> Option<Cow<'_, [u8]>> {
        let fields = |name: &str| {
            let name = name.as_bytes().to_vec();
            let fields = self.session.head.fields();
            fields.filter(move |field| field.name.eq_ignore_ascii_case(&name)).map(|field| field.value)
        };
        match key {
            HashKey::ClientAddress => None,
            // Each value that a client makes up would have an allowance of its own.
            HashKey::Header(name) if !self.is_believed(name.as_bytes(), account) => None,
            HashKey::Header(name) if name.eq_ignore_ascii_case("authorization") => {
                only(fields(name)).map(|value| Cow::Owned(folded_credentials(value)))
            }
            HashKey::Header(name) => only(fields(name)).map(Cow::Borrowed),
            HashKey::Cookie(name) => {
                only(fields("cookie").flat_map(|field| cookies(field, name.as_bytes()))).map(decoded_cookie)
            }
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

fn only<T>(mut values: impl Iterator<Item = T>) -> Option<T> {
    values.next().filter(|_| values.next().is_none())
}

/// Credentials with their scheme in lower case and one space (RFC 9110 11.4).
fn folded_credentials(value: &[u8]) -> Vec<u8> {
    let end = value.iter().position(|byte| *byte == b' ').unwrap_or(value.len());
    let (scheme, rest) = value.split_at(end);
    [&scheme.to_ascii_lowercase()[..], b" ", rest.trim_ascii()].concat()
}

/// The value of a cookie as most frameworks read it: without quotes, and decoded.
fn decoded_cookie(value: &[u8]) -> Cow<'_, [u8]> {
    let quoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    percent_decode(quoted.unwrap_or(value)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_value_are_one() {
        assert_eq!(decoded_cookie(b"\"a%62c\""), decoded_cookie(b"abc"));
        assert_eq!(folded_credentials(b"BASIC   YTpi "), folded_credentials(b"basic YTpi"));
        assert_ne!(folded_credentials(b"Basic YTpi"), folded_credentials(b"Basic ytpi"));
        assert_eq!(only([1].into_iter()), Some(1));
        assert_eq!([only([1, 1].into_iter()), only([].into_iter())], [None, None]);
    }
}
