//! `rate_limits`: how many requests a client may send in a time.

use std::collections::BTreeMap;

use super::clusters::HASH_KEY;
use super::codec::{Codec, Flag, Optional, Own, Table, keys, map, number, word};
use super::defaults::DAY_MS;
use super::names::words;
use super::out::Out;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::unit::Unit;
use super::{HashKey, text};

/// Maximum number of limits; each has a table of clients.
const LIMITS_MAX: usize = 100;
/// Maximum number of limits of one route; each costs a request a lookup.
pub(super) const OF_ROUTE_MAX: usize = 8;
/// Maximum number of requests of a rate, and of a burst.
const REQUESTS_MAX: u64 = 1_000_000;
/// What to write as a rate.
const RATE: &str = "requests/time such as 10/1m";

/// A limit, by the generic cell rate algorithm.
#[derive(Clone, Debug, PartialEq)]
pub struct RateLimit {
    /// What is counted separately.
    pub key: HashKey,
    /// How many requests may come in which time.
    pub rate: Rate,
    /// Requests that may come at once; with `then: delay`, those that may wait. `None` is as many as the rate has.
    pub burst: Option<u32>,
    /// Clients that are remembered; 20 bytes each, room to fill unevenly included.
    pub clients_max: usize,
    /// What happens to requests beyond it.
    pub then: Excess,
    /// How long a client is banned, in milliseconds.
    pub ban_ms: u64,
    /// Count and log only.
    pub dry_run: bool,
    /// Whether it counts for the whole fleet.
    pub shared: Sharing,
    /// How long a request waits for the store if it is exact, in milliseconds.
    pub exact_timeout_ms: u64,
}

/// Whether a limit counts for the whole fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// For each host by itself.
    Alone,
    /// For all, about a second late.
    Approximate,
    /// For all, by asking Redis for each request.
    Exact,
}

/// A number of requests in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests.
    pub requests: u32,
    /// The time, in milliseconds.
    pub period_ms: u64,
}

/// What happens to requests beyond a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// They get 429.
    Reject,
    /// They wait for their time, as many as the burst; the others get 429.
    Delay,
    /// They get 429, and their client is turned away for a while.
    Ban,
}

words!(Excess {
    Reject = "reject",
    Delay = "delay",
    Ban = "ban",
});

impl RateLimit {
    /// The requests that may come at once.
    pub fn burst(&self) -> u32 {
        self.burst.unwrap_or(self.rate.requests)
    }
}

keys! { RateLimit, settle consistent {
    key: HashKey::ClientAddress, HASH_KEY;
    burst: None, Optional(number(1..=REQUESTS_MAX));
    // More than most sites have in an hour; 2 MB, which are taken as clients come.
    clients_max: 100_000, number(1000..=10_000_000);
    then: Excess::Reject, word();
    // Long enough to spoil a search for passwords, short enough for one who only mistyped.
    ban_ms: 600_000, number(1000..=30 * DAY_MS);
    dry_run: false, Flag;
    shared: Sharing::Alone, SHARING;
    // Redis in the same network takes one; more would be a burden when it hangs.
    exact_timeout_ms: 100, number(1..=5_000);
} required {
    rate: Rate { requests: 1, period_ms: 1000 }, RATE, RATES;
}}

/// The longest wait with `then: delay`, in milliseconds: clients give up earlier.
const WAIT_MS_MAX: u64 = 600_000;

/// Most requests a second of an exact limit: Redis' clock has microseconds.
const EXACT_MAX: u64 = 100_000;

fn consistent(limit: &mut RateLimit, fields: &mut Fields<'_>) {
    let a_second = u64::from(limit.rate.requests) * 1000 / limit.rate.period_ms.max(1);
    if limit.shared == Sharing::Exact && a_second > EXACT_MAX {
        fields.problems.add(
            &fields.path.key("rate"),
            format!(
                "an exact limit counts at most {EXACT_MAX} requests a second; lower it, or write shared: true"
            ),
        );
    }
    bans_one_client(limit, fields);
    let wait_ms = limit.rate.period_ms.saturating_mul(limit.burst().into()) / u64::from(limit.rate.requests);
    if limit.then == Excess::Delay && wait_ms > WAIT_MS_MAX {
        let write = |time| Unit::Milliseconds.write(time);
        let seconds = wait_ms / 1000 * 1000;
        fields.mistake(format!(
            "requests would wait for up to {}; lower burst or raise rate, to {} at most",
            write(seconds),
            write(WAIT_MS_MAX)
        ));
    }
}

/// A ban is of an address: a request that lacks the field has one, and one that has it may share it with others.
fn bans_one_client(limit: &mut RateLimit, fields: &mut Fields<'_>) {
    if limit.then == Excess::Ban && limit.key != HashKey::ClientAddress {
        fields.problems.add(
            &fields.path.key("then"),
            "only addresses can be banned; write key: client_address, or then: reject",
        );
    }
}

const EXACT: &str = "exact";

const SHARING: Own<Sharing> = Own {
    read: |item| match &item.value {
        serde_yaml::Value::Bool(true) => Some(Sharing::Approximate),
        serde_yaml::Value::Bool(false) => Some(Sharing::Alone),
        value if value.as_str() == Some(EXACT) => Some(Sharing::Exact),
        _ => {
            item.not_one_of(&["true", "false", EXACT]);
            None
        }
    },
    write: |sharing| match sharing {
        Sharing::Alone => false.into(),
        Sharing::Approximate => true.into(),
        Sharing::Exact => EXACT.into(),
    },
    shape: || Shape::AnyOf(vec![Shape::Boolean, Shape::words(&[EXACT])]),
};

const RATES: Own<Rate> = Own {
    read: |item| {
        let Some(text) = item.value.as_str() else {
            item.wrong_kind(RATE);
            return None;
        };
        let rate = rate(text);
        if rate.is_none() {
            item.mistake(format!(
                "{} is not a rate; write {RATE}: 1 to {REQUESTS_MAX} requests in up to a day",
                quote(text)
            ));
        }
        rate
    },
    write: |rate| format!("{}/{}", rate.requests, Unit::Milliseconds.write(rate.period_ms)).into(),
    shape: || Shape::Matching("^[0-9]+/(([0-9]+(ms|s|m|h|d))+|ms|s|m|h|d)$"),
};

/// `10/1m`, or `10/m`.
fn rate(text: &str) -> Option<Rate> {
    let (requests, period) = text.split_once('/')?;
    let has_number = period.starts_with(|c: char| c.is_ascii_digit());
    let period = if has_number { period.to_owned() } else { format!("1{period}") };
    let period_ms = Unit::Milliseconds.read(&period).filter(|period| (1..=DAY_MS).contains(period))?;
    let digits_only = requests.bytes().all(|byte| byte.is_ascii_digit());
    let requests =
        requests.parse::<u64>().ok().filter(|count| digits_only && (1..=REQUESTS_MAX).contains(count));
    Some(Rate { requests: u32::try_from(requests?).ok()?, period_ms })
}

/// Limits by name.
pub(super) const LIMITS: Own<BTreeMap<String, RateLimit>> = Own {
    read: |item| Some(limits(item)),
    write: |limits| {
        let mut out = Out::default();
        limits.iter().for_each(|(name, limit)| out.put(name, limit.written()));
        out.done()
    },
    shape: || Shape::entries(Shape::Map(RateLimit::keys()), LIMITS_MAX),
};

fn limits(item: &Item<'_>) -> BTreeMap<String, RateLimit> {
    let mut limits = BTreeMap::new();
    for (name, item) in item.entries(LIMITS_MAX) {
        // It is a parameter of the RateLimit field.
        if name.len() > text::NAME_BYTES_MAX || !text::is_token(&name) {
            item.mistake(format!("{} is not a name here; write letters, digits and hyphens", quote(&name)));
        }
        limits.extend(map().read(&item).map(|limit| (name, limit)));
    }
    limits
}
