//! Rate limits that a fleet counts together, in approximation: each member tells the others once a second how many requests
//! of which clients it has served. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::state::Keys;
use crate::store::Commit;

/// The seed that makes the keys of clients the same on all members.
const SEED: &str = "rates/seed";
/// What members have served is below this.
const FOLDER: &str = "rates/of/";
/// Clients of one limit in one report: those that send most matter.
pub(crate) const CLIENTS_MAX: usize = 500;

/// Clients by their keys, and how many of their requests were served.
pub(crate) type ServedClients = Vec<(u64, u32)>;

/// What a member has served since its last report, by limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RateReport(pub(crate) BTreeMap<String, ServedClients>);

/// Which reports were counted.
#[derive(Default)]
pub(crate) struct RateExchange {
    /// The versions of the keys of others.
    seen: Option<BTreeMap<String, u64>>,
    /// The seed that was in use last.
    seed: Option<[u64; 2]>,
}

impl RateExchange {
    /// The seed, or the change that makes one: that of before, if the store has lost it.
    pub(crate) fn seed(&mut self, keys: &Keys) -> Result<[u64; 2], Commit> {
        let seed = keys.get(SEED).and_then(|item| serde_json::from_slice(&item.value).ok());
        self.seed = seed.or(self.seed);
        seed.ok_or_else(|| {
            let seed = self.seed.unwrap_or_else(|| [fastrand::u64(..), fastrand::u64(..)]);
            Commit {
                checks: vec![(SEED.to_owned(), keys.get(SEED).map_or(0, |item| item.version))],
                puts: vec![(SEED.to_owned(), serde_json::to_vec(&seed).unwrap_or_default())],
                deletes: Vec::new(),
            }
        })
    }

    /// The change that tells the others.
    pub(crate) fn report(member: &str, report: &RateReport) -> Commit {
        let value = serde_json::to_vec(report).unwrap_or_default();
        Commit { puts: vec![(format!("{FOLDER}{member}"), value)], ..Commit::default() }
    }

    /// Reports of others that were not counted yet. Those that are there at first are old.
    pub(crate) fn news(&mut self, member: &str, keys: &Keys) -> Vec<RateReport> {
        let own = format!("{FOLDER}{member}");
        let others = keys.range(FOLDER.to_owned()..).take_while(|(key, _)| key.starts_with(FOLDER));
        let others: Vec<_> = others.filter(|(key, _)| **key != own).collect();
        let versions = others.iter().map(|(key, item)| ((*key).clone(), item.version)).collect();
        let Some(before) = self.seen.replace(versions) else { return Vec::new() };
        let news = others.into_iter().filter(|(key, item)| before.get(*key) != Some(&item.version));
        news.filter_map(|(_, item)| serde_json::from_slice(&item.value).ok()).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::Item;

    fn put(keys: &mut Keys, commit: &Commit, version: u64) {
        for (key, value) in &commit.puts {
            keys.insert(key.clone(), Item { value: value.clone(), version });
        }
    }

    #[test]
    fn each_report_of_another_member_counts_once() {
        let (mut keys, mut exchange) = (Keys::new(), RateExchange::default());
        let report = |count| RateReport([("login".to_owned(), vec![(7, count)])].into());
        put(&mut keys, &RateExchange::report("b", &report(1)), 1);
        assert!(exchange.news("a", &keys).is_empty(), "it is from before");
        put(&mut keys, &RateExchange::report("b", &report(2)), 2);
        put(&mut keys, &RateExchange::report("a", &report(3)), 3);
        assert_eq!(exchange.news("a", &keys), [report(2)]);
        assert!(exchange.news("a", &keys).is_empty());
        put(&mut keys, &RateExchange::report("c", &report(4)), 4);
        assert_eq!(exchange.news("a", &keys), [report(4)]);
    }

    #[test]
    fn one_seed_is_made() {
        let (mut keys, mut exchange) = (Keys::new(), RateExchange::default());
        let made = exchange.seed(&keys).unwrap_err();
        assert_eq!(made.checks[0].1, 0);
        put(&mut keys, &made, 1);
        let seed = exchange.seed(&keys).unwrap();
        assert_eq!(exchange.seed(&keys).unwrap(), seed);
        // The store has lost it.
        let again = exchange.seed(&Keys::new()).unwrap_err();
        assert_eq!(again.puts, made.puts);
    }
}
