//! Which part of the proxy may name which. The rule is the table; the rest reads paths.

use super::source::{Source, closing, line_of};

/// A part (first path segment under `proxy/src`) and the other parts it may name.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("http", &[]),
    ("config", &[]),
    ("kernel", &[]),
    ("router", ROUTING),
    ("cluster", ROUTING),
    ("balancer", ROUTING),
    ("queue", &["config"]),
];

const ROUTING: &[&str] =
    &["config", "error", "http", "router", "cluster", "balancer", "queue", "clock", "tls"];

/// A part and the only others that may name it.
const NAMED_ONLY_BY: &[(&str, &[&str])] = &[("connection", &["worker", "server"])];

/// Adds a problem for each name that the tables do not allow.
pub(super) fn check(source: &Source, problems: &mut Vec<String>) {
    let Some(inner) = source.path.strip_prefix("proxy/src/") else {
        return;
    };
    if source.is_tests() {
        return;
    }
    let part = part_of(inner);
    for (offset, named) in named_parts(&source.production, depth_of(inner)) {
        if !allowed(part, &named) {
            let line = line_of(&source.production, offset);
            problems.push(format!(
                "{}:{line}: `{part}` must not name `crate::{named}` (import rule)",
                source.path
            ));
        }
    }
}

fn allowed(part: &str, named: &str) -> bool {
    let within = |table: &[(&str, &[&str])], key: &str, other: &str| {
        table.iter().find(|(name, _)| *name == key).is_none_or(|(_, others)| others.contains(&other))
    };
    part == named || (within(MAY_NAME, part, named) && within(NAMED_ONLY_BY, named, part))
}

fn part_of(inner: &str) -> &str {
    let first = inner.split('/').next().unwrap_or(inner);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// How many `super` lead from the file's module to the crate root.
fn depth_of(inner: &str) -> usize {
    match inner {
        "lib.rs" | "main.rs" => 0,
        _ if inner.ends_with("/mod.rs") => inner.matches('/').count(),
        _ => inner.matches('/').count() + 1,
    }
}

/// Every first segment after the crate root, with where it stands.
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

/// The identifier at `at`, or each one that begins a member of a group there.
fn segments(code: &str, at: usize, found: &mut Vec<(usize, String)>) {
    if !code[at..].starts_with('{') {
        let name: String = code[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        // A capital names an item of the root itself (a macro's `$crate::` has a part too).
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
        check(&Source::new(path, text), &mut problems);
        problems
    }

    #[test]
    fn http_names_no_sibling() {
        assert_eq!(problems("proxy/src/http/head.rs", "use crate::http::Limits;"), [""; 0]);
        let found = problems("proxy/src/http/head.rs", "\nfn f(c: crate::config::Config) {}");
        assert!(found[0].starts_with("proxy/src/http/head.rs:2: `http` must not name `crate::config`"));
    }

    #[test]
    fn groups_and_super_are_seen() {
        let text = "use crate::{\n    http::{Head, Framing},\n    error::Reason,\n};";
        assert_eq!(problems("proxy/src/http/mod.rs", text).len(), 1);
        assert_eq!(problems("proxy/src/http/mod.rs", "use super::error::Reason;").len(), 1);
        assert_eq!(problems("proxy/src/http/head.rs", "use super::framing::Framing;").len(), 0);
        assert_eq!(problems("proxy/src/http/head.rs", "use super::super::error;").len(), 1);
    }

    #[test]
    fn comments_and_tests_may_name_anything() {
        let text =
            "/// See crate::connection.\nfn f() {}\n#[cfg(test)]\nmod tests { use crate::error::Reason; }";
        assert_eq!(problems("proxy/src/config/mod.rs", text), [""; 0]);
    }

    #[test]
    fn routing_sees_config_and_its_own_kind() {
        let text = "use crate::config::Route; use crate::cluster::Endpoint;";
        assert_eq!(problems("proxy/src/balancer/mod.rs", text), [""; 0]);
        assert_eq!(problems("proxy/src/router/mod.rs", "use crate::stream::Stream;").len(), 1);
    }

    #[test]
    fn only_worker_and_server_name_connection() {
        let text = "use crate::connection::serve;";
        assert_eq!(problems("proxy/src/worker/mod.rs", text), [""; 0]);
        assert_eq!(problems("proxy/src/connection/mod.rs", text), [""; 0]);
        assert_eq!(problems("proxy/src/exchange/mod.rs", text).len(), 1);
    }
}
