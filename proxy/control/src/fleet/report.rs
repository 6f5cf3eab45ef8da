//! What each member says of itself, and what is still missing before a change is everywhere.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::view::Traffic;

/// Stands for all services in [`Report::failed`].
pub(crate) const ALL: &str = "*";

/// What a member says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    /// The version of sluice.
    pub(crate) release: String,
    /// When it started, in seconds of Unix time.
    pub(crate) since: u64,
    /// The fleet whose services it serves, and their version.
    pub(crate) fleet: String,
    pub(crate) applied: u64,
    /// Services with requests at targets that were replaced, and the version that replaced them.
    pub(crate) draining: BTreeMap<String, u64>,
    /// What it has found of proposed targets, by proposal.
    pub(crate) ready: BTreeMap<String, Readiness>,
    /// Answers to authorities that it shows, by their names; `None` if it has no key to read them.
    pub(crate) shown: Option<BTreeSet<String>>,
    /// Services that it cannot serve as they are, and why.
    pub(crate) failed: BTreeMap<String, String>,
    /// What goes through it.
    pub(crate) traffic: Traffic,
}

/// What a member has found of proposed targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Readiness {
    /// They are healthy.
    Healthy,
    /// They cannot be used.
    Unusable {
        error: String,
        #[serde(default)]
        details: Vec<String>,
    },
}

/// Members by their keys: name, `/`, and a number of the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Members(pub(crate) BTreeMap<String, Report>);

/// What is missing before all members have done something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shortfall {
    /// Members that have failed, and why.
    pub(crate) failed: Vec<String>,
    /// Members that have not answered.
    pub(crate) silent: BTreeSet<String>,
}

impl Members {
    /// From what the store has. A report of a later version is as good as one that says nothing.
    pub(crate) fn of(said: &BTreeMap<String, Vec<u8>>) -> Self {
        let read = |(key, said): (&String, &Vec<u8>)| {
            (key.clone(), serde_json::from_slice(said).unwrap_or_default())
        };
        Self(said.iter().map(read).collect())
    }

    /// The names.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.0.keys().map(|key| name_of(key).to_owned()).collect()
    }

    /// Which of them, and of those `expected` before, have not yet checked the targets of a proposal.
    pub(crate) fn without_check(&self, proposal: &str, expected: &BTreeSet<String>) -> Shortfall {
        let mut missing = self.gone(expected);
        for (key, report) in &self.0 {
            let name = name_of(key);
            match report.ready.get(proposal) {
                Some(Readiness::Healthy) => {}
                Some(Readiness::Unusable { error, details }) if details.is_empty() => {
                    missing.failed.push(format!("{name}: {error}"));
                }
                Some(Readiness::Unusable { details, .. }) => {
                    missing.failed.extend(details.iter().map(|detail| format!("{name}: {detail}")));
                }
                None => drop(missing.silent.insert(name.to_owned())),
            }
        }
        missing
    }

    /// Which of them, and of those `expected` before, do not yet serve a version of a service in a fleet, or have requests
    /// at what it replaced.
    pub(crate) fn without(
        &self,
        (fleet, version): (&str, u64),
        service: &str,
        expected: &BTreeSet<String>,
    ) -> Shortfall {
        let mut missing = self.gone(expected);
        for (key, report) in &self.0 {
            let name = name_of(key);
            let has_it = report.fleet == fleet && report.applied >= version;
            if !has_it || report.draining.get(service).is_some_and(|drained| *drained <= version) {
                missing.silent.insert(name.to_owned());
            } else if let Some(error) = report.failed.get(service).or(report.failed.get(ALL)) {
                missing.failed.push(format!("{name}: {error}"));
            }
        }
        missing
    }

    fn gone(&self, expected: &BTreeSet<String>) -> Shortfall {
        let silent = expected.difference(&self.names()).cloned().collect();
        Shortfall { failed: Vec::new(), silent }
    }
}

impl Shortfall {
    /// Whether nothing is missing.
    pub(crate) fn is_nothing(&self) -> bool {
        self.failed.is_empty() && self.silent.is_empty()
    }
}

/// The name of a member, without the number of its process.
pub(crate) fn name_of(key: &str) -> &str {
    key.split('/').next().unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: &str = "f";

    fn report(applied: u64) -> Report {
        Report { applied, fleet: F.to_owned(), ..Report::default() }
    }

    #[test]
    fn members_that_were_there_are_missed() {
        let members = Members([("a/1".to_owned(), report(3)), ("b/1".to_owned(), report(2))].into());
        let expected = ["a", "c"].map(str::to_owned).into();
        let missing = members.without((F, 3), "web", &expected);
        assert_eq!(missing.silent, ["b", "c"].map(str::to_owned).into());
        assert!(members.without((F, 2), "web", &["a".to_owned()].into()).is_nothing());
        assert!(!members.without(("g", 2), "web", &BTreeSet::new()).is_nothing(), "another fleet");
    }

    #[test]
    fn a_member_that_drains_another_service_has_done_its_part() {
        let draining = Report { draining: [("web".to_owned(), 3)].into(), ..report(4) };
        let members = Members([("a/1".to_owned(), draining)].into());
        assert!(members.without((F, 4), "api", &BTreeSet::new()).is_nothing());
        assert!(members.without((F, 2), "web", &BTreeSet::new()).is_nothing());
        assert!(!members.without((F, 3), "web", &BTreeSet::new()).is_nothing());
    }

    #[test]
    fn a_member_that_was_replaced_counts_once_all_its_processes_are_there() {
        let members = Members([("a/1".to_owned(), report(2)), ("a/2".to_owned(), report(3))].into());
        assert_eq!(members.without((F, 3), "web", &BTreeSet::new()).silent, ["a".to_owned()].into());
    }

    #[test]
    fn what_failed_is_named_with_its_member() {
        let failed = Report { failed: [("web".to_owned(), "no".to_owned())].into(), ..report(1) };
        let details = vec!["10.0.0.1:80: refused".to_owned()];
        let unusable = Readiness::Unusable { error: "unhealthy".to_owned(), details };
        let checked = Report { ready: [("p".to_owned(), unusable)].into(), ..Report::default() };
        let members = Members([("a/1".to_owned(), failed), ("b/1".to_owned(), checked)].into());
        assert_eq!(members.without((F, 1), "web", &BTreeSet::new()).failed, ["a: no"]);
        assert_eq!(members.without_check("p", &BTreeSet::new()).failed, ["b: 10.0.0.1:80: refused"]);
    }
}
