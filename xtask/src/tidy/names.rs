//! Rules on Rust files: how they start, their names, and where unsafe code is allowed.

use std::collections::BTreeSet;

use super::Document;
use super::source::{Source, line_of, words};

const FORBIDDEN_MODULES: &[&str] = &["util", "utils", "common", "helper", "helpers"];

/// The only places of unsafe code.
const UNSAFE_PLACES: &[&str] = &["proxy/kernel/", "proxy/ring/", "proxy-ebpf/"];

/// Adds a problem for each rule that a file breaks.
pub(super) fn check(source: &Source, problems: &mut Vec<String>) {
    let path = source.path;
    let ours =
        ["proxy/", "bench/", "xtask/"].iter().any(|top| path.starts_with(top)) && path.contains("/src/");
    if ours && !source.text.starts_with("//!") {
        problems.push(format!("{path}:1: does not start with `//!`"));
    }
    for segment in path.split('/') {
        let module = segment.strip_suffix(".rs").unwrap_or(segment);
        if FORBIDDEN_MODULES.contains(&module) {
            problems.push(format!("{path}: no module may be called `{module}`: name what is in it"));
        }
    }
    if !UNSAFE_PLACES.iter().any(|place| path.starts_with(place)) {
        for at in words(&source.code, "unsafe") {
            let line = line_of(&source.code, at);
            problems.push(format!("{path}:{line}: unsafe is allowed only in {UNSAFE_PLACES:?}"));
        }
    }
}

/// Adds a problem for each error that is a plain text: the caller can only print it.
pub(super) fn check_errors(source: &Source, problems: &mut Vec<String>) {
    if source.is_tests() {
        return;
    }
    for (at, _) in source.production.match_indices(", String>") {
        let line_start = source.production[..at].rfind('\n').map_or(0, |end| end + 1);
        if source.production[line_start..at].contains("Result<") {
            let line = line_of(&source.production, at);
            problems
                .push(format!("{}:{line}: an error needs a type; see the others in this crate", source.path));
        }
    }
}

/// Adds a problem for each `foo.rs` next to a folder `foo`.
pub(super) fn check_siblings(documents: &[Document], problems: &mut Vec<String>) {
    let folders: BTreeSet<&str> = documents
        .iter()
        .filter_map(|document| document.path.rsplit_once('/').map(|(folder, _)| folder))
        .collect();
    for document in documents.iter().filter(|document| document.path.contains("src/")) {
        let beside = document.path.strip_suffix(".rs");
        if beside.is_some_and(|stem| folders.contains(stem)) {
            problems.push(format!("{}: write it as mod.rs in the folder", document.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        let mut problems = Vec::new();
        check(&Source::new(path, text), &mut problems);
        problems.len()
    }

    #[test]
    fn files_start_with_a_module_comment() {
        assert_eq!(problems("proxy/src/error.rs", "//! Errors.\n"), 0);
        assert_eq!(problems("proxy/src/error.rs", "use std::io;\n"), 1);
        assert_eq!(problems("proxy/tests/it/main.rs", "use std::io;\n"), 0);
    }

    #[test]
    fn unsafe_is_allowed_only_in_its_places() {
        let text = "//! x\n// unsafe\nfn f() { unsafe {} }\n";
        assert_eq!(problems("proxy/src/stream.rs", text), 1);
        assert_eq!(problems("proxy/ring/src/uring/poll.rs", text), 0);
        assert_eq!(problems("proxy/kernel/src/lib.rs", text), 0);
        assert_eq!(problems("proxy/src/x.rs", "//! x\n#![deny(unsafe_code)]"), 0);
    }

    #[test]
    fn generic_module_names_are_refused() {
        assert_eq!(problems("proxy/src/util.rs", "//! x\n"), 1);
        assert_eq!(problems("proxy/src/helpers/mod.rs", "//! x\n"), 1);
        assert_eq!(problems("proxy/src/utility.rs", "//! x\n"), 0);
    }

    #[test]
    fn string_errors_are_refused() {
        let found = |text: &str| {
            let mut problems = Vec::new();
            check_errors(&Source::new("proxy/core/src/x.rs", text), &mut problems);
            problems.len()
        };
        assert_eq!(found("fn f() -> Result<(), String> {}"), 1);
        assert_eq!(found("fn f() -> Result<String, Wrong> {}\ntype T = BTreeMap<String, String>;"), 0);
        assert_eq!(found("#[cfg(test)]\nmod tests { fn f() -> Result<(), String> {} }"), 0);
    }

    #[test]
    fn module_is_either_a_file_or_a_folder() {
        let documents = ["proxy/src/http.rs", "proxy/src/http/head.rs"]
            .map(|path| Document { path: path.to_owned(), text: String::new() });
        let mut problems = Vec::new();
        check_siblings(&documents, &mut problems);
        assert_eq!(problems.len(), 1);
    }
}
