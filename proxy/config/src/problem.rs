//! Mistakes of a configuration, collected so that all of them are reported at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;

use super::lines::Lines;
use super::path::Path;

/// Maximum number of reported mistakes; a file with more is probably not a configuration.
const PROBLEMS_MAX: usize = 1000;

/// Maximum characters of a value that a message quotes.
const QUOTE_CHARS_MAX: usize = 60;

/// Where the wrong value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the file.
    File,
    /// The command line, by this flag.
    Flag(&'static str),
}

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The wrong value, such as `clusters.api.endpoints[1]`; empty is the document as a whole.
    pub path: String,
    /// Its line in the file, from 1, if known.
    pub line: Option<usize>,
    /// Where it comes from.
    pub origin: Origin,
    /// What is wrong and what to write.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

/// All mistakes of one configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file name, or a substitute for it.
    pub source_name: String,
    /// The mistakes in the order of their lines; never empty.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            match (problem.origin, problem.line) {
                (Origin::Flag(flag), _) => write!(f, "{flag}: {problem}")?,
                (Origin::File, Some(line)) => write!(f, "{}:{line}: {problem}", self.source_name)?,
                (Origin::File, None) => write!(f, "{}: {problem}", self.source_name)?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// An error with a single mistake about the document as a whole.
    pub(super) fn whole(source_name: &str, line: Option<usize>, message: String) -> Self {
        let problem = Problem { path: String::new(), line, origin: Origin::File, message };
        Self { source_name: source_name.to_owned(), problems: vec![problem] }
    }
}

/// Collects mistakes while a document is read.
///
/// Shared by reference among readers of nested values, hence the cells.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// The first `PROBLEMS_MAX`.
    found: RefCell<Vec<(Path, String)>>,
    total: Cell<usize>,
    /// Keys that were named with their unit, and what to write instead.
    outdated: RefCell<Vec<(Path, String)>>,
    keys: RefCell<BTreeSet<String>>,
}

impl Problems {
    pub(super) fn add(&self, path: &Path, message: impl Into<String>) {
        self.total.set(self.total.get() + 1);
        if self.total.get() <= PROBLEMS_MAX {
            let mut found = self.found.borrow_mut();
            found.push((path.clone(), message.into()));
        }
    }

    /// Whether there is no mistake.
    pub(super) fn is_empty(&self) -> bool {
        self.total.get() == 0
    }

    /// Records a key that a reader knows, so that a test can check its documentation.
    pub(super) fn note_key(&self, key: &str) {
        self.keys.borrow_mut().insert(key.to_owned());
    }

    /// Records a key that has its old name, with a unit; `value` is the value for the new name, if known.
    pub(super) fn note_outdated(&self, path: &Path, name: &str, value: impl Fn() -> Option<String>) {
        let mut outdated = self.outdated.borrow_mut();
        // A key may be read twice.
        if outdated.len() < PROBLEMS_MAX && !outdated.iter().any(|(known, _)| known == path) {
            let value = value().map(|value| format!(": {value}")).unwrap_or_default();
            outdated.push((path.clone(), format!("this is its old name; write {name}{value}")));
        }
    }

    /// The keys that have their old names, with their lines.
    pub(super) fn outdated(&self, lines: &Lines) -> Vec<Problem> {
        let found = self.outdated.borrow();
        let mut notes: Vec<Problem> = found
            .iter()
            .map(|(path, message)| Problem {
                path: path.to_string(),
                line: lines.of(path),
                origin: Origin::File,
                message: message.clone(),
            })
            .collect();
        notes.sort_by_key(|note| note.line.unwrap_or(usize::MAX));
        notes
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> Vec<String> {
        self.keys.borrow().iter().cloned().collect()
    }

    /// The mistakes with their lines; `flags` are the paths that the command line set.
    pub(super) fn finish(self, lines: &Lines, flags: &[(Path, &'static str)]) -> Vec<Problem> {
        let found = self.found.into_inner();
        let total = self.total.get();
        let mut problems: Vec<Problem> = found
            .into_iter()
            .map(|(path, message)| {
                let path = lines.as_written(path);
                let flag = flags.iter().rev().find(|(written, _)| path.is_within(written));
                match flag {
                    Some((_, flag)) => {
                        Problem { path: path.to_string(), line: None, origin: Origin::Flag(flag), message }
                    }
                    None => Problem {
                        line: lines.of(&path),
                        path: path.to_string(),
                        origin: Origin::File,
                        message,
                    },
                }
            })
            .collect();
        problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        if total > PROBLEMS_MAX {
            let message = format!("{} more mistakes are not shown", total - PROBLEMS_MAX);
            problems.push(Problem { path: String::new(), line: None, origin: Origin::File, message });
        }
        problems
    }
}

/// Text as a message shows it: quoted, escaped, truncated.
pub(super) fn quote(text: &str) -> String {
    let mut short: String = text.chars().take(QUOTE_CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}
