//! The committed list of what is too long today. An entry may shrink or go, never grow.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

const HEAD: &str = "\
# What is over a size limit: lines, file, and the function if it is one. Read by `cargo xtask tidy`.
# Entries may only shrink: `cargo xtask tidy --bless` lowers and drops them, a new one is added by hand.
";

/// A file or function over its maximum.
#[derive(Debug, PartialEq)]
pub(super) struct Excess {
    key: Key,
    lines: usize,
    max: usize,
}

/// Path, and the function's name if it is one.
type Key = (String, Option<String>);
/// Listed lines by what is listed.
pub(super) type Listed = BTreeMap<Key, usize>;

impl Excess {
    /// `function` is `None` for a whole file.
    pub(super) fn new(path: &str, function: Option<&str>, lines: usize, max: usize) -> Self {
        let key = (path.to_owned(), function.map(str::to_owned));
        Self { key, lines, max }
    }
}

/// Reads the file: `LINES PATH [FUNCTION]` a line, `#` begins a comment line.
///
/// # Errors
/// When a line reads otherwise.
pub(super) fn read(text: &str) -> Result<Listed> {
    let mut listed = Listed::new();
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
        let mut words = line.split_whitespace();
        let entry = (|| {
            let lines = words.next()?.parse().ok()?;
            let key = (words.next()?.to_owned(), words.next().map(str::to_owned));
            words.next().is_none().then_some((key, lines))
        })();
        let (key, lines) =
            entry.with_context(|| format!("ratchet: `{line}` is not `LINES PATH [FUNCTION]`"))?;
        listed.insert(key, lines);
    }
    Ok(listed)
}

/// The file's text for `listed`.
pub(super) fn write(listed: &Listed) -> String {
    let mut text = HEAD.to_owned();
    for ((path, function), lines) in listed {
        let function = function.as_ref().map(|name| format!(" {name}"));
        text.push_str(&format!("{lines} {path}{}\n", function.unwrap_or_default()));
    }
    text
}

/// `listed` with each entry at what is there now, if that is less. Nothing is added.
pub(super) fn lower(listed: &Listed, excesses: &[Excess]) -> Listed {
    let now = longest(excesses);
    listed.iter().filter_map(|(key, lines)| Some((key.clone(), *lines.min(&now.get(key)?.lines)))).collect()
}

/// Adds a problem for each difference between what is listed and what is there.
pub(super) fn compare(listed: &Listed, excesses: &[Excess], problems: &mut Vec<String>) {
    let now = longest(excesses);
    for (key, excess) in &now {
        let allowed = listed.get(key).copied().unwrap_or(excess.max);
        if excess.lines > allowed {
            let what = name(key);
            problems.push(format!("{what} has {} lines, over {allowed}", excess.lines));
        }
    }
    for (key, lines) in listed {
        let found = now.get(key).map_or(0, |excess| excess.lines);
        if found < *lines {
            problems.push(format!(
                "{} is listed with {lines} lines and has shrunk; run `cargo xtask tidy --bless`",
                name(key)
            ));
        }
    }
}

/// Two functions of one name in one file (methods of two types) count as the longer.
fn longest(excesses: &[Excess]) -> BTreeMap<&Key, &Excess> {
    let mut longest = BTreeMap::<&Key, &Excess>::new();
    for excess in excesses {
        let entry = longest.entry(&excess.key).or_insert(excess);
        if entry.lines < excess.lines {
            *entry = excess;
        }
    }
    longest
}

fn name((path, function): &Key) -> String {
    match function {
        Some(function) => format!("{path}: function `{function}`"),
        None => path.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn compared(listed: &str, excesses: &[Excess]) -> usize {
        let mut problems = Vec::new();
        compare(&read(listed).unwrap(), excesses, &mut problems);
        problems.len()
    }

    #[test]
    fn what_is_listed_may_stay_but_not_grow_or_shrink_unseen() {
        let now = [Excess::new("a.rs", Some("f"), 80, 70)];
        assert_eq!(compared("80 a.rs f\n", &now), 0);
        assert_eq!(compared("", &now), 1);
        assert_eq!(compared("79 a.rs f\n", &now), 1);
        assert_eq!(compared("81 a.rs f\n", &now), 1);
        assert_eq!(compared("80 a.rs f\n", &[]), 1);
    }

    #[test]
    fn bless_lowers_drops_and_adds_nothing() {
        let listed = read("# note\n90 a.rs f\n75 a.rs g\n310 b.rs\n").unwrap();
        let now = [
            Excess::new("a.rs", Some("f"), 80, 70),
            Excess::new("b.rs", None, 320, 300),
            Excess::new("c.rs", None, 400, 300),
        ];
        let lowered = lower(&listed, &now);
        assert_eq!(write(&lowered), format!("{HEAD}80 a.rs f\n310 b.rs\n"));
        assert_eq!(read(&write(&lowered)).unwrap(), lowered);
    }

    #[test]
    fn a_malformed_line_is_named() {
        assert!(read("a.rs 80").unwrap_err().to_string().contains("a.rs 80"));
    }
}
