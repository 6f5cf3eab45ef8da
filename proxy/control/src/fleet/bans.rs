//! Bans as a fleet shares them: which ones this member has to publish, to take over and to end. Pure: times are passed in.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use sluice_core::bans::ListedBan;

use super::state::Keys;
use crate::store::{CHANGES_MAX, Commit};

/// Bans are below this, by address.
const FOLDER: &str = "bans/";
/// Bans that are published in one second. During an attack, the rest follows in the next ones.
const PACE_MAX: usize = 10 * CHANGES_MAX;
/// A ban that ends this much later than the known one is news, in milliseconds.
const NEWS_MS: u64 = 1000;
/// After a ban is over, its member removes it; after this time, in milliseconds, anybody does.
const LEFT_BEHIND_MS: u64 = 60_000;

/// A ban in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SharedBan {
    /// When it ends, in milliseconds of Unix time: clocks of the members agree to a second or so.
    until_ms: u64,
    /// The rate limit that banned, or `operator`.
    by: String,
    /// The member that banned.
    member: String,
    /// Whether an operator has ended it before. It stays in the store until its time, for members that are away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_ended: bool,
}

/// What is known of the bans of the fleet.
#[derive(Default)]
pub(crate) struct BanExchange {
    /// Bans that are in force here and in the store, and when they end.
    common: BTreeMap<IpAddr, u64>,
}

/// What to do.
#[derive(Debug, Default)]
pub(crate) struct BanSteps {
    /// Bans of others.
    pub(crate) begin: Vec<ListedBan>,
    /// Bans that were ended on another member.
    pub(crate) end: Vec<IpAddr>,
    /// What the others have to know.
    pub(crate) commits: Vec<Commit>,
}

impl BanExchange {
    /// Compares the bans of this member with those of the store.
    pub(crate) fn compare(
        &mut self,
        member: &str,
        keys: &Keys,
        local: &[ListedBan],
        now_unix_ms: u64,
    ) -> BanSteps {
        let mut steps = BanSteps::default();
        let local: BTreeMap<IpAddr, &ListedBan> = local.iter().map(|ban| (ban.client, ban)).collect();
        let until = |ban: &ListedBan| now_unix_ms.saturating_add(ban.left_ms);
        let shared = shared(keys);
        let mut deletes = Vec::new();
        let mut puts = Vec::new();
        for (client, ban) in &shared {
            let here = local.get(client).map(|ban| until(ban));
            if ban.until_ms <= now_unix_ms {
                let is_own = ban.member == member;
                if is_own || ban.until_ms + LEFT_BEHIND_MS < now_unix_ms {
                    deletes.push(key(*client));
                }
                self.common.remove(client);
            } else if ban.is_ended {
                self.common.remove(client);
                if here.is_some_and(|here| here <= ban.until_ms + NEWS_MS) {
                    steps.end.push(*client);
                }
            } else if here.is_some_and(|here| here + NEWS_MS >= ban.until_ms) {
                self.common.insert(*client, ban.until_ms);
            } else if here.is_none() && self.common.remove(client).is_some() {
                // It was ended here.
                puts.push(put(*client, &SharedBan { is_ended: true, ..ban.clone() }));
            } else {
                let left_ms = ban.until_ms - now_unix_ms;
                steps.begin.push(ListedBan { client: *client, left_ms, by: ban.by.clone() });
            }
        }
        for (client, ban) in &local {
            if shared.get(client).is_none_or(|known| known.until_ms + NEWS_MS < until(ban)) {
                let (by, member) = (ban.by.clone(), member.to_owned());
                puts.push(put(*client, &SharedBan { until_ms: until(ban), by, member, is_ended: false }));
            }
        }
        self.common.retain(|client, _| shared.contains_key(client));
        puts.truncate(PACE_MAX);
        deletes.truncate(PACE_MAX);
        let pieces = puts.chunks(CHANGES_MAX).map(|puts| (puts.to_vec(), Vec::new()));
        let pieces = pieces.chain(deletes.chunks(CHANGES_MAX).map(|keys| (Vec::new(), keys.to_vec())));
        steps.commits = pieces.map(|(puts, deletes)| Commit { puts, deletes, ..Commit::default() }).collect();
        steps
    }

    /// Bans that are in force here from now on, though others have begun them.
    pub(crate) fn begun(&mut self, ban: &ListedBan, now_unix_ms: u64) {
        self.common.insert(ban.client, now_unix_ms.saturating_add(ban.left_ms));
    }
}

fn shared(keys: &Keys) -> BTreeMap<IpAddr, SharedBan> {
    let of_folder = keys.range(FOLDER.to_owned()..).map_while(|(key, item)| {
        let client = key.strip_prefix(FOLDER)?;
        Some((client.parse().ok(), serde_json::from_slice(&item.value).ok()))
    });
    of_folder.filter_map(|(client, ban)| Some((client?, ban?))).collect()
}

fn put(client: IpAddr, ban: &SharedBan) -> (String, Vec<u8>) {
    (key(client), serde_json::to_vec(ban).unwrap_or_default())
}

fn key(client: IpAddr) -> String {
    format!("{FOLDER}{client}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::store::Item;

    const NOW: u64 = 1_000_000;

    fn listed(client: &str, left_ms: u64) -> ListedBan {
        ListedBan { client: client.parse().unwrap(), left_ms, by: "login".to_owned() }
    }

    fn apply(keys: &mut Keys, steps: &BanSteps) {
        for commit in &steps.commits {
            for (key, value) in &commit.puts {
                keys.insert(key.clone(), Item { value: value.clone(), version: 1 });
            }
            for key in &commit.deletes {
                keys.remove(key);
            }
        }
    }

    #[test]
    fn a_ban_reaches_the_others_and_so_does_its_end() {
        let (mut one, mut two, mut keys) = (BanExchange::default(), BanExchange::default(), Keys::new());
        let of_one = vec![listed("192.0.2.1", 60_000)];
        let steps = one.compare("one", &keys, &of_one, NOW);
        apply(&mut keys, &steps);
        assert!(one.compare("one", &keys, &of_one, NOW).commits.is_empty(), "it is known");
        let steps = two.compare("two", &keys, &[], NOW + 10_000);
        assert_eq!(steps.begin, [listed("192.0.2.1", 50_000)]);
        two.begun(&steps.begin[0], NOW + 10_000);
        let of_two = vec![listed("192.0.2.1", 50_000)];
        let steps = two.compare("two", &keys, &of_two, NOW + 10_000);
        assert!(steps.begin.is_empty() && steps.commits.is_empty());
        // An operator ends it on the second one.
        let steps = two.compare("two", &keys, &[], NOW + 20_000);
        assert!(steps.begin.is_empty());
        apply(&mut keys, &steps);
        assert!(two.compare("two", &keys, &[], NOW + 20_000).begin.is_empty());
        let steps = one.compare("one", &keys, &[listed("192.0.2.1", 40_000)], NOW + 20_000);
        assert_eq!(steps.end, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert!(steps.commits.is_empty());
        // It is banned again.
        let steps = one.compare("one", &keys, &[listed("192.0.2.1", 60_000)], NOW + 30_000);
        apply(&mut keys, &steps);
        assert_eq!(two.compare("two", &keys, &[], NOW + 30_000).begin.len(), 1);
    }

    #[test]
    fn a_store_that_has_forgotten_gets_the_bans_again() {
        let (mut one, keys) = (BanExchange::default(), Keys::new());
        let of_one = [listed("192.0.2.1", 60_000)];
        let mut published = keys.clone();
        apply(&mut published, &one.compare("one", &keys, &of_one, NOW));
        assert!(one.compare("one", &published, &of_one, NOW).commits.is_empty());
        let steps = one.compare("one", &keys, &of_one, NOW);
        assert!(steps.end.is_empty() && steps.commits.len() == 1);
    }

    #[test]
    fn bans_that_are_over_are_removed_by_their_member_or_later_by_anybody() {
        let (mut one, mut two, mut keys) = (BanExchange::default(), BanExchange::default(), Keys::new());
        let steps = one.compare("one", &keys, &[listed("2001:db8::", 1000)], NOW);
        apply(&mut keys, &steps);
        assert!(two.compare("two", &keys, &[], NOW + 1000).commits.is_empty());
        assert_eq!(one.compare("one", &keys, &[], NOW + 1000).commits[0].deletes, ["bans/2001:db8::"]);
        assert_eq!(two.compare("two", &keys, &[], NOW + 62_000).commits[0].deletes, ["bans/2001:db8::"]);
    }

    #[test]
    fn a_longer_ban_is_news() {
        let (mut one, mut keys) = (BanExchange::default(), Keys::new());
        let steps = one.compare("one", &keys, &[listed("192.0.2.1", 5000)], NOW);
        apply(&mut keys, &steps);
        assert!(one.compare("one", &keys, &[listed("192.0.2.1", 5500)], NOW).commits.is_empty());
        assert_eq!(one.compare("one", &keys, &[listed("192.0.2.1", 9000)], NOW).commits.len(), 1);
    }

    #[test]
    fn an_attack_is_published_piece_by_piece() {
        let many: Vec<_> = (0..1000_u32)
            .map(|at| ListedBan {
                client: std::net::Ipv4Addr::from(at).into(),
                left_ms: 60_000,
                by: "login".to_owned(),
            })
            .collect();
        let (mut one, mut keys, mut rounds) = (BanExchange::default(), Keys::new(), 0);
        while keys.len() < many.len() {
            let steps = one.compare("one", &keys, &many, NOW);
            assert!(steps.commits.iter().all(|commit| commit.puts.len() <= CHANGES_MAX));
            apply(&mut keys, &steps);
            rounds += 1;
            assert!(rounds < 10);
        }
    }
}
