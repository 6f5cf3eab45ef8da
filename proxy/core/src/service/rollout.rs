//! Which clients use a rollout's targets: a percentage of them, identified by a cookie, and a list.
//!
//! The hash is kamal-proxy's, so that a client stays in its group when sluice replaces kamal-proxy.

use serde::{Deserialize, Serialize};

use super::options::null_is_empty;

/// The cookie whose value identifies clients; the application sets it.
pub const COOKIE: &str = "kamal-rollout";

/// The split of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Rollout {
    /// Percentage of cookie values that select the rollout's targets.
    pub percentage: i64,
    /// The upper end of the hashes of those values.
    pub percentage_split_point: f64,
    /// Cookie values that always select the rollout's targets.
    pub allowlist: Vec<String>,
}

/// A split in JSON. The split point is recomputed: after a conversion to text and back, its last digit may differ.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Stored {
    percentage: i64,
    #[serde(deserialize_with = "null_is_empty")]
    allowlist: Vec<String>,
}

impl From<Stored> for Rollout {
    fn from(stored: Stored) -> Self {
        Self::new(stored.percentage, stored.allowlist)
    }
}

impl Rollout {
    /// A split by percentage and list.
    pub fn new(percentage: i64, allowlist: Vec<String>) -> Self {
        // Computed exactly as in kamal-proxy, to the last bit.
        let percentage_split_point = f64::from(u32::MAX) * (percentage as f64 / 100.0);
        Self { percentage, percentage_split_point, allowlist }
    }

    /// Whether this cookie value selects the rollout's targets; an empty value does not.
    pub fn includes(&self, value: &[u8]) -> bool {
        if value.is_empty() {
            return false;
        }
        self.allowlist.iter().any(|listed| listed.as_bytes() == value)
            || f64::from(fnv1a(value)) <= self.percentage_split_point
    }
}

/// The 32-bit FNV-1a hash.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        // From the authors' test vectors.
        for (text, hash) in [("", 0x811c_9dc5), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(fnv1a(text.as_bytes()), hash, "{text}");
        }
    }

    #[test]
    fn a_rollout_includes_a_percentage_of_values_and_the_list() {
        // kamal-proxy's own cases.
        let list = vec!["00001".to_owned(), "00002".to_owned()];
        let inside = |rollout: &Rollout| {
            (0..1000).filter(|number| rollout.includes(format!("{number:05}").as_bytes())).count()
        };
        assert!(inside(&Rollout::new(60, Vec::new())).abs_diff(600) <= 20);
        let with_list = Rollout::new(10, list.clone());
        assert!(inside(&with_list).abs_diff(100) <= 20);
        assert!(with_list.includes(b"00001") && with_list.includes(b"00002") && !with_list.includes(b""));
        assert_eq!(inside(&Rollout::new(0, list)), 2);
        assert_eq!(inside(&Rollout::new(100, Vec::new())), 1000);
    }
}
