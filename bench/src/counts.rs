//! What sluice counts during a measurement: paths of exchanges, and why responses were not returned directly.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Result;
use serde::Serialize;
use sluice_testkit::metrics;

const DIRECT: &str = "sluice_direct_return_exchanges_total";
const MISSED: &str = "sluice_direct_return_missed_total";
const PATHS: &str = "sluice_path_exchanges_total";

/// Exchanges, from `/metrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    /// Responses that went from the application to the client without sluice.
    pub(super) direct: u64,
    /// Finished exchanges, by path.
    pub(super) paths: BTreeMap<String, u64>,
    /// Responses over joined connections that were not, or not completely, returned directly, by reason.
    pub(super) missed: BTreeMap<String, u64>,
}

impl Counts {
    /// The counts since sluice started.
    ///
    /// # Errors
    /// `/metrics` cannot be fetched.
    pub(super) fn read(admin: SocketAddr) -> Result<Self> {
        Ok(Self::parse(&metrics::read(admin)?))
    }

    fn parse(text: &str) -> Self {
        let direct = metrics::sum(text, DIRECT);
        Self { direct, paths: labelled(text, PATHS), missed: labelled(text, MISSED) }
    }

    /// The difference to `before`.
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

    /// Adds the counts of another measurement.
    pub(super) fn add(&mut self, other: &Self) {
        self.direct += other.direct;
        for (all, one) in [(&mut self.paths, &other.paths), (&mut self.missed, &other.missed)] {
            for (name, n) in one {
                *all.entry(name.clone()).or_default() += n;
            }
        }
    }

    /// Finished exchanges over all paths.
    pub(super) fn exchanges(&self) -> u64 {
        self.paths.values().sum()
    }
}

/// The series of a counter with one label, by the label's value.
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
    fn measurement_is_the_difference_of_counters() {
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
