//! Counts passed, failed and skipped checks, and prints them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use anyhow::{Result, anyhow};

/// The counts so far, and the filter that selects checks.
pub struct Tally {
    started: Instant,
    filter: Option<String>,
    passed: usize,
    skipped: usize,
    failures: Vec<Failure>,
    /// What the tests of the binary that runs now printed as they failed.
    blamed: Vec<Failure>,
}

/// A failed check, for the end of the output.
struct Failure {
    name: String,
    /// The first lines of the reason.
    why: Vec<String>,
}

/// Lines of a failure's reason that are repeated at the end.
const WHY_LINES: usize = 12;

impl Tally {
    /// An empty count.
    pub fn new(filter: Option<String>) -> Self {
        Self {
            started: Instant::now(),
            filter,
            passed: 0,
            skipped: 0,
            failures: Vec::new(),
            blamed: Vec::new(),
        }
    }

    /// The filter, as cargo test accepts it.
    pub fn filter(&self) -> Option<&str> {
        self.filter.as_deref()
    }

    /// Whether a check of this name is selected.
    pub fn wants(&self, name: &str) -> bool {
        self.filter().is_none_or(|filter| name.contains(filter))
    }

    /// Prints a heading with the elapsed time, which shows where the time of a run goes.
    pub fn heading(&self, name: &str) {
        println!("== test: {name} (after {} s)", self.elapsed_secs());
    }

    /// Whole seconds since the start.
    pub fn elapsed_secs(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Runs one check if it is selected. Its return value is printed next to its name.
    pub fn check(&mut self, name: &str, run: impl FnOnce() -> Result<String>) {
        if !self.wants(name) {
            return;
        }
        // A panicking check must not leave servers running or hide the other checks.
        let done = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(anyhow!("panicked")));
        self.settle(name, done);
    }

    /// Counts one check that ran elsewhere.
    pub fn settle(&mut self, name: &str, done: Result<String>) {
        match done {
            Ok(note) => {
                let note = Some(note).filter(|note| !note.is_empty());
                let note = note.map(|note| format!(" ({note})")).unwrap_or_default();
                println!("test {name} ... ok{note}");
                self.passed += 1;
            }
            Err(error) => {
                println!("test {name} ... FAILED\n{error:#}");
                let why = format!("{error:#}").lines().take(WHY_LINES).map(str::to_owned).collect();
                self.failures.push(Failure { name: name.to_owned(), why });
            }
        }
    }

    /// Counts `count` checks as skipped, and prints the reason.
    pub fn skip(&mut self, name: &str, count: usize, reason: &str) {
        if count > 0 {
            println!("skipped: {name}: {reason}");
        }
        self.skipped += count;
    }

    /// Reads one line that cargo test prints: the counts of a `test result:` line are added, and what a failed test
    /// printed is kept for [`Self::list_failures`]. Returns whether it was a result line.
    pub fn read_line(&mut self, name: &str, line: &str) -> bool {
        let Some((passed, failed, ignored)) = result_line(line) else {
            self.keep_blame(line);
            return false;
        };
        self.passed += passed;
        self.skipped += ignored;
        let mut blamed = std::mem::take(&mut self.blamed).into_iter();
        let failures = (0..failed).map(|_| {
            let why = blamed.next().map(|test| [vec![test.name], test.why].concat()).unwrap_or_default();
            Failure { name: format!("cargo test ({name})"), why }
        });
        self.failures.extend(failures);
        true
    }

    /// Keeps the first lines below `---- NAME stdout ----`.
    fn keep_blame(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            return self.blamed.push(Failure { name: test.to_owned(), why: Vec::new() });
        }
        let Some(test) = self.blamed.last_mut() else { return };
        // The names of all that failed follow the last test's output.
        if test.why.len() < WHY_LINES && !line.is_empty() && line != "failures:" {
            test.why.push(line.to_owned());
        }
    }

    /// Number of failures.
    pub fn failed(&self) -> usize {
        self.failures.len()
    }

    /// Prints the name and the reason of each failure.
    pub fn list_failures(&self) {
        for failures in self.failures.chunk_by(|one, next| one.name == next.name) {
            println!("failed: {}", failures[0].name);
            for line in failures.iter().flat_map(|failure| &failure.why) {
                println!("    {line}");
            }
        }
    }

    /// The closing line.
    pub fn summary(&self) -> String {
        format!("tests: {} passed, {} failed, {} skipped", self.passed, self.failed(), self.skipped)
    }
}

/// Passed, failed and ignored of `test result: ok. 5 passed; 0 failed; 1 ignored; …`.
fn result_line(line: &str) -> Option<(usize, usize, usize)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let count = |word: &str| {
        counts.split(';').find_map(|part| {
            let number = part.trim().strip_suffix(word)?;
            number.trim().parse().ok()
        })
    };
    Some((count("passed")?, count("failed")?, count("ignored")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_summed() {
        let mut tally = Tally::new(None);
        let line = "test result: FAILED. 5 passed; 2 failed; 1 ignored; 0 measured; 9 filtered out; finished in 0.01s";
        assert!(tally.read_line("units", line));
        assert!(!tally.read_line("units", "test a ... ok"));
        tally.check("a", || Ok(String::new()));
        tally.check("b", || Err(anyhow!("no")));
        tally.skip("c", 3, "why");
        assert_eq!(tally.summary(), "tests: 6 passed, 3 failed, 4 skipped");
    }

    #[test]
    fn the_output_of_a_failed_test_is_kept_for_the_end() {
        let mut tally = Tally::new(None);
        let output = "failures:\n\n---- mine::one stdout ----\nthread panicked at a.rs:1:2:\nwrong\n\n\nfailures:\n\
                      test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        for line in output.lines() {
            tally.read_line("units", line);
        }
        let [failure] = &tally.failures[..] else { panic!("{} failures", tally.failures.len()) };
        assert_eq!(failure.name, "cargo test (units)");
        assert_eq!(failure.why, ["mine::one", "thread panicked at a.rs:1:2:", "wrong"]);
    }

    #[test]
    fn filter_matches_part_of_the_name() {
        let mut tally = Tally::new(Some("puma".to_owned()));
        tally.check("apps::go::get", || Err(anyhow!("must not run")));
        tally.check("apps::puma::get", || Ok(String::new()));
        assert_eq!(tally.summary(), "tests: 1 passed, 0 failed, 0 skipped");
    }
}
