//! Rules on modules: no import cycle between the top modules of a crate, and which of them may name which.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, closing, line_of};

/// A crate's folder, a part of it (a top module), and the only other parts that it may name.
const MAY_NAME: &[(&str, &str, &[&str])] = &[
    ("proxy/core", "router", ROUTING),
    ("proxy/core", "cluster", ROUTING),
    ("proxy/core", "balancer", ROUTING),
    ("proxy/core", "queue", &[]),
];

const ROUTING: &[&str] = &["error", "router", "cluster", "balancer", "queue", "client", "clock", "tls"];

/// A crate's folder, a part of it, and the only other parts that may name it.
const NAMED_ONLY_BY: &[(&str, &str, &[&str])] = &[("proxy/engine", "connection", &["thread"])];

/// The top modules of a crate, and the other modules that each names.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Adds a problem for each name that the tables do not allow, and for each cycle.
pub(super) fn check(sources: &[Source<'_>], problems: &mut Vec<String>) {
    let mut crates: BTreeMap<&str, Graph> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_tests()) {
        let Some((folder, inner)) = source.path.split_once("/src/") else { continue };
        let part = part_of(inner);
        // The crate root may name everything, and so may a separate program.
        if matches!(part, "lib" | "main" | "build" | "bin") {
            continue;
        }
        let named = named_parts(&source.production, depth_of(inner));
        check_tables(source, (folder, part), &named, problems);
        let others = crates.entry(folder).or_default().entry(part.to_owned()).or_default();
        others.extend(named.into_iter().map(|(_, name)| name).filter(|name| name != part));
    }
    for (folder, graph) in &crates {
        check_cycles(folder, graph, problems);
    }
}

fn check_tables(
    source: &Source<'_>,
    (folder, part): (&str, &str),
    named: &[(usize, String)],
    problems: &mut Vec<String>,
) {
    for (offset, name) in named.iter().filter(|(_, name)| !allowed(folder, part, name)) {
        let line = line_of(&source.production, *offset);
        problems
            .push(format!("{}:{line}: `{part}` must not name `crate::{name}` (import rule)", source.path));
    }
}

fn check_cycles(folder: &str, graph: &Graph, problems: &mut Vec<String>) {
    let cyclic: Vec<&str> =
        graph.keys().map(String::as_str).filter(|part| reached(graph, part).contains(part)).collect();
    if !cyclic.is_empty() {
        problems.push(format!("{folder}/src: {cyclic:?} are in an import cycle"));
    }
}

/// All parts that are reachable from a part.
fn reached<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(others) = left.pop().map(|part| graph.get(part)) {
        for other in others.into_iter().flatten() {
            if graph.contains_key(other) && reached.insert(other.as_str()) {
                left.push(other);
            }
        }
    }
    reached
}

fn allowed(folder: &str, part: &str, named: &str) -> bool {
    let within = |table: &[(&str, &str, &[&str])], key: &str, other: &str| {
        let entry = table.iter().find(|(of, name, _)| *of == folder && *name == key);
        entry.is_none_or(|(_, _, others)| others.contains(&other))
    };
    part == named || (within(MAY_NAME, part, named) && within(NAMED_ONLY_BY, named, part))
}

fn part_of(inner: &str) -> &str {
    let first = inner.split('/').next().unwrap_or(inner);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Number of `super` from the file's module to the crate root.
fn depth_of(inner: &str) -> usize {
    match inner {
        "lib.rs" | "main.rs" => 0,
        _ if inner.ends_with("/mod.rs") => inner.matches('/').count(),
        _ => inner.matches('/').count() + 1,
    }
}

/// Every first segment after the crate root, with its position.
fn named_parts(code: &str, depth: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        segments(code, at + "crate::".len(), &mut found);
    }
    if depth > 0 {
        let chain = "super::".repeat(depth);
        for (at, _) in code.match_indices(&chain) {
            if !code[..at].ends_with("super::") {
                segments(code, at + chain.len(), &mut found);
            }
        }
    }
    found
}

/// The identifier at `at`, or the first one of each member of a group there.
fn segments(code: &str, at: usize, found: &mut Vec<(usize, String)>) {
    if !code[at..].starts_with('{') {
        let name: String = code[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        // A capital letter starts an item of the root itself (a macro's `$crate::` has a part, too).
        if name.starts_with(|c: char| c.is_lowercase()) && name != "super" {
            found.push((at, name));
        }
        return;
    }
    let end = closing(code, at) - 1;
    let mut member = at + 1;
    while member < end {
        let skip = code[member..end].len() - code[member..end].trim_start().len();
        member += skip;
        if member >= end {
            break;
        }
        segments(code, member, found);
        member = next_member(code, member, end);
    }
}

fn next_member(code: &str, mut at: usize, end: usize) -> usize {
    while at < end {
        match code.as_bytes()[at] {
            b'{' => at = closing(code, at),
            b',' => return at + 1,
            _ => at += 1,
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        check(&[Source::new(path, text)], &mut problems);
        problems.retain(|problem| problem.contains("import rule"));
        problems
    }

    #[test]
    fn forbidden_name_is_reported_with_its_line() {
        assert_eq!(problems("proxy/core/src/queue/line.rs", "use crate::queue::Limits;"), [""; 0]);
        let found = problems("proxy/core/src/queue/line.rs", "\nfn f(c: crate::error::Reason) {}");
        assert!(found[0].starts_with("proxy/core/src/queue/line.rs:2: `queue` must not name `crate::error`"));
    }

    #[test]
    fn groups_and_super_are_recognized() {
        let text = "use crate::{\n    queue::{Head, Framing},\n    error::Reason,\n};";
        assert_eq!(problems("proxy/core/src/queue/mod.rs", text).len(), 1);
        assert_eq!(problems("proxy/core/src/queue/mod.rs", "use super::error::Reason;").len(), 1);
        assert_eq!(problems("proxy/core/src/queue/head.rs", "use super::framing::Framing;").len(), 0);
        assert_eq!(problems("proxy/core/src/queue/head.rs", "use super::super::error;").len(), 1);
    }

    #[test]
    fn comments_and_tests_may_name_anything() {
        let text =
            "/// See crate::connection.\nfn f() {}\n#[cfg(test)]\nmod tests { use crate::error::Reason; }";
        assert_eq!(problems("proxy/core/src/queue/mod.rs", text), [""; 0]);
    }

    #[test]
    fn routing_modules_may_name_each_other() {
        let text = "use crate::error::Reason; use crate::cluster::Endpoint;";
        assert_eq!(problems("proxy/core/src/balancer/mod.rs", text), [""; 0]);
        assert_eq!(problems("proxy/core/src/router/mod.rs", "use crate::stream::Stream;").len(), 1);
    }

    #[test]
    fn only_thread_may_name_connection() {
        let text = "use crate::connection::serve;";
        assert_eq!(problems("proxy/engine/src/thread/mod.rs", text), [""; 0]);
        assert_eq!(problems("proxy/engine/src/connection/mod.rs", text), [""; 0]);
        assert_eq!(problems("proxy/engine/src/exchange/mod.rs", text).len(), 1);
    }

    #[test]
    fn import_cycles_are_reported() {
        let found = |edges: &[(&str, &str)]| {
            let mut graph = Graph::new();
            for (part, other) in edges {
                graph.entry((*part).to_owned()).or_default().insert((*other).to_owned());
            }
            let mut problems = Vec::new();
            check_cycles("x", &graph, &mut problems);
            problems
        };
        assert_eq!(found(&[("a", "b"), ("b", "c"), ("c", "elsewhere")]), [""; 0]);
        let circle = found(&[("a", "b"), ("b", "c"), ("c", "b")]);
        assert_eq!(circle, ["x/src: [\"b\", \"c\"] are in an import cycle"]);
    }
}
