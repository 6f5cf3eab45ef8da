//! The routes of one host, by path.

use std::collections::HashMap;

use regex::bytes::RegexSet;
use sluice_config as config;

use super::Query;
use super::path::{normalised, on_border};
use super::rule::Rule;

/// Whole paths come first, then expressions in the order of the file, then prefixes, the longest first.
#[derive(Debug, Default)]
pub(super) struct Paths {
    whole: HashMap<Box<[u8]>, Vec<Rule>>,
    /// `None` if no route of the host has an expression.
    patterns: Option<Box<Patterns>>,
    prefixes: Prefixes,
}

/// Sets by their texts: hosts with the same expressions share one.
pub(super) type Compiled = HashMap<Vec<String>, RegexSet>;

#[derive(Debug, Default)]
struct Patterns {
    /// All expressions; one pass over a path tells which match.
    set: RegexSet,
    texts: Vec<String>,
    /// By position in the set.
    rules: Vec<Rule>,
}

#[derive(Debug, Default)]
struct Prefixes {
    /// Distinct lengths of the keys below, longest first: one lookup per length, regardless of the number of routes.
    lengths: Vec<usize>,
    /// The prefix `/` is stored as the empty prefix, so that it also matches `*` (RFC 9112 3.2.4).
    by_prefix: HashMap<Box<[u8]>, Vec<Rule>>,
}

impl Paths {
    pub(super) fn insert(&mut self, rule: Rule, route: &config::Route) {
        match (&route.path, &route.path_regex) {
            (Some(path), _) => {
                let path = normalised(path.as_bytes());
                push(self.whole.entry((&*path).into()).or_default(), rule);
            }
            (None, Some(pattern)) => self.patterns.get_or_insert_default().insert(pattern, rule),
            (None, None) => self.prefixes.insert(&route.path_prefix, rule),
        }
    }

    /// Brings everything in the order of the search.
    pub(super) fn sort(&mut self, compiled: &mut Compiled) {
        self.whole.values_mut().for_each(|rules| by_conditions(rules));
        if let Some(patterns) = &mut self.patterns {
            patterns.compile(compiled);
        }
        self.prefixes.sort();
    }

    /// The route for a normalised path. `allowed` gets the methods of those that match except for the method.
    pub(super) fn find<'s>(
        &'s self,
        query: &Query<'_>,
        path: &[u8],
        allowed: &mut Vec<&'s str>,
    ) -> Option<usize> {
        let whole = self.whole.get(path).into_iter().flatten();
        let patterns = self.patterns.iter().flat_map(|patterns| patterns.find(path));
        let candidates = whole.chain(patterns).chain(self.prefixes.find(path));
        candidates.into_iter().find_map(|rule| rule.matches(query, path, allowed))
    }
}

impl Patterns {
    fn insert(&mut self, pattern: &str, rule: Rule) {
        if self.rules.last().is_some_and(|last| last.route == rule.route) {
            return;
        }
        self.texts.push(pattern.to_owned());
        self.rules.push(rule);
    }

    fn compile(&mut self, compiled: &mut Compiled) {
        let texts = std::mem::take(&mut self.texts);
        let set = compiled.entry(texts).or_insert_with_key(|texts| {
            config::patterns(texts.iter().map(String::as_str)).expect("checked with the configuration")
        });
        self.set = set.clone();
    }

    fn find(&self, path: &[u8]) -> impl Iterator<Item = &Rule> {
        self.set.matches(path).into_iter().map(|position| &self.rules[position])
    }
}

impl Prefixes {
    fn insert(&mut self, prefix: &str, rule: Rule) {
        let prefix = normalised(prefix.as_bytes());
        let prefix: &[u8] = if *prefix == *b"/" { b"" } else { &prefix };
        push(self.by_prefix.entry(prefix.into()).or_default(), rule);
    }

    fn sort(&mut self) {
        self.lengths = self.by_prefix.keys().map(|prefix| prefix.len()).collect();
        self.lengths.sort_unstable_by(|a, b| b.cmp(a));
        self.lengths.dedup();
        self.by_prefix.values_mut().for_each(|rules| by_conditions(rules));
    }

    fn find(&self, path: &[u8]) -> impl Iterator<Item = &Rule> {
        let lengths = self.lengths.iter().copied();
        lengths
            .filter(move |&length| on_border(path, length))
            .filter_map(move |length| self.by_prefix.get(&path[..length]))
            .flatten()
    }
}

fn push(rules: &mut Vec<Rule>, rule: Rule) {
    // A route that names a host twice is still one route.
    if rules.last().is_none_or(|last| last.route != rule.route) {
        rules.push(rule);
    }
}

/// Most conditions first. Stable, so that the order in the file decides between equals.
fn by_conditions(rules: &mut [Rule]) {
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.conditions()));
}
