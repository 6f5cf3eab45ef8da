//! What sluice counts of a measurement: paths of exchanges, and why answers were not returned directly.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Result;
use serde::Serialize;
use sluice_testkit::metrics;

const DIRECT: &str = "sluice_direct_return_exchanges_total";
const MISSED: &str = "sluice_direct_return_missed_total";
const PATHS: &str = "sluice_path_exchanges_total";

/// Exchanges, as `/metrics` has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    /// Answers that went from the application to the client past sluice.
    pub(super) direct: u64,
    /// Exchanges that ended, by path.
    pub(super) paths: BTreeMap<String, u64>,
    /// Answers over joined connections that were not returned directly, or not to their end, by reason.
    pub(super) missed: BTreeMap<String, u64>,
}

impl Counts {
    /// All since sluice runs.
    ///
    /// # Errors
    /// When `/metrics` cannot be fetched.
    pub(super) fn read(admin: SocketAddr) -> Result<Self> {
        Ok(Self::parse(&metrics::read(admin)?))
    }

    fn parse(text: &str) -> Self {
        let direct = metrics::sum(text, DIRECT);
        Self { direct, paths: labelled(text, PATHS), missed: labelled(text, MISSED) }
    }

    /// What came to those of `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        let less = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let rest = |(name, n): (&String, &u64)| {
                (name.clone(), n - before.get(name).copied().unwrap_or(0).min(*n))
            };
            now.iter().map(rest).filter(|(_, n)| *n > 0).collect()
        };
        Self {
            direct: self.direct.saturating_sub(before.direct),
            paths: less(&self.paths, &before.paths),
            missed: less(&self.missed, &before.missed),
        }
    }

    /// Takes those of another measurement in.
    pub(super) fn add(&mut self, other: &Self) {
        self.direct += other.direct;
        for (all, one) in [(&mut self.paths, &other.paths), (&mut self.missed, &other.missed)] {
            for (name, n) in one {
                *all.entry(name.clone()).or_default() += n;
            }
        }
    }

    /// Exchanges that ended, whichever path they took.
    pub(super) fn exchanges(&self) -> u64 {
        self.paths.values().sum()
    }
}

/// The series of a counter that has one label, by the label's value.
fn labelled(text: &str, name: &str) -> BTreeMap<String, u64> {
    let series = |line: &str| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.split_once("} ")?;
        let (_, label) = labels.split_once("=\"")?;
        Some((label.trim_end_matches('"').to_owned(), value.trim().parse::<f64>().ok()? as u64))
    };
    text.lines().filter_map(series).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(direct: u64, copied: u64, missed: u64) -> String {
        format!(
            "# TYPE {PATHS} counter\n{PATHS}{{path=\"direct\"}} {direct}\n{PATHS}{{path=\"copy\"}} {copied}\n\
             {DIRECT} {direct}\n{MISSED}{{reason=\"full\"}} {missed}\n{MISSED}{{reason=\"head\"}} 0\n# EOF\n"
        )
    }

    #[test]
    fn a_measurement_is_what_came_to_the_counters() {
        let counts = Counts::parse(&text(90, 14, 5)).since(&Counts::parse(&text(20, 4, 5)));
        assert_eq!((counts.direct, counts.exchanges()), (70, 80));
        assert_eq!(counts.paths, [("direct".to_owned(), 70), ("copy".to_owned(), 10)].into());
        assert!(counts.missed.is_empty());
    }

    #[test]
    fn measurements_add_up() {
        let mut all = Counts::parse(&text(1, 2, 3));
        all.add(&Counts::parse(&text(10, 0, 4)));
        assert_eq!((all.direct, all.exchanges(), all.missed["full"]), (11, 13, 7));
    }
}
