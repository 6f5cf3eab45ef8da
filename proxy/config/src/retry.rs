//! `retry` of a cluster or a route.

use serde_yaml::Value;

use super::clusters::{STATUSES_MAX, status_range};
use super::codec::{Flag, Own, keys, number};
use super::out::list;
use super::reader::Item;
use super::shape::Shape;

/// The first status that means a failure of the server.
const FIRST: u16 = 500;
/// The last.
const LAST: u16 = 599;

/// When a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Retries of an idempotent request whose reused connection closed before the first response byte, or whose
    /// response has one of `statuses`.
    pub attempts_max: u32,
    /// Further endpoints tried when connecting fails.
    pub connect_attempts_max: u32,
    /// Statuses with which an idempotent request goes to another endpoint; 502 includes a connection that breaks.
    pub statuses: ServerErrors,
    /// Whether a request that changes nothing goes to a second endpoint as well, when the first is slower than for 95 of
    /// 100 requests; the first answer counts.
    pub hedge: bool,
    /// Retries for `statuses` and second requests of `hedge`, in percent of the requests.
    pub budget_percent: u32,
}

keys! { Retry {
    // One fresh connection resolves the race with a closing server; more would multiply load.
    attempts_max: 1, number(0..=10);
    // Two more endpoints cover the failure of one, without trying every endpoint of a dead cluster.
    connect_attempts_max: 2, number(0..=100);
    // None: an application may respond with an error after it has acted.
    statuses: ServerErrors::default(), STATUSES;
    // Off: it does work twice, which pays only where a few answers are much slower than the rest.
    hedge: false, Flag;
    // The load of an outage grows by a fifth and not more.
    budget_percent: 20, number(1..=100);
}}

/// A set of statuses from 500 to 599.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerErrors(u128);

impl ServerErrors {
    /// The set of all statuses of some ranges.
    pub fn of(ranges: &[(u16, u16)]) -> Self {
        let all = ranges.iter().flat_map(|(low, high)| *low..=*high);
        Self(all.filter_map(bit).fold(0, |set, bit| set | bit))
    }

    /// Whether a status is among them.
    pub fn contains(self, status: u16) -> bool {
        bit(status).is_some_and(|bit| self.0 & bit != 0)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn ranges(self) -> Vec<(u16, u16)> {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for status in (FIRST..=LAST).filter(|status| self.contains(*status)) {
            match ranges.last_mut() {
                Some((_, high)) if *high + 1 == status => *high = status,
                _ => ranges.push((status, status)),
            }
        }
        ranges
    }
}

fn bit(status: u16) -> Option<u128> {
    (FIRST..=LAST).contains(&status).then(|| 1 << (status - FIRST))
}

const STATUSES: Own<ServerErrors> = Own {
    read: |item| Some(read(item)),
    write: |statuses| list(&statuses.ranges(), |(low, high)| Value::from(format!("{low}-{high}"))),
    shape: || {
        let status = Shape::Integer(u64::from(FIRST), u64::from(LAST));
        Shape::list(Shape::AnyOf(vec![status, Shape::TEXT]), STATUSES_MAX)
    },
};

fn read(item: &Item<'_>) -> ServerErrors {
    let ranges = item.list(STATUSES_MAX);
    ServerErrors::of(
        &ranges.iter().filter_map(|item| status_range(item, FIRST, "502-504")).collect::<Vec<_>>(),
    )
}
