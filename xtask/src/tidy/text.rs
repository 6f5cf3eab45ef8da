//! Rules on the text of any file: nothing specific to one machine, no stray white space.

use super::Document;

/// Prefixes of paths that exist on one machine only. In pieces, so that this file passes.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tmp/", "wt"), concat!("/ho", "me/")];

/// Settings that direct a package manager to another registry.
const REGISTRY_SETTINGS: &[&str] = &[
    concat!("replace", "-with"),
    concat!("spar", "se+http"),
    concat!("index", "-url"),
    concat!("GOPROXY", "=http"),
    concat!("registry", " = \"http"),
];

/// Not specific to one machine: where Kamal mounts its proxy's state, in every container.
const KAMAL_HOME: &str = concat!("/ho", "me/kamal-proxy");

/// The only source that the lock file may name.
const LOCKED_SOURCE: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

/// Adds a problem for each line that breaks a rule.
pub(super) fn check(document: &Document, problems: &mut Vec<String>) {
    let path = &document.path;
    let spaced = [".rs", ".yaml", ".yml", ".md"].iter().any(|end| path.ends_with(end));
    let locked = path.ends_with("Cargo.lock");
    for (index, line) in document.text.lines().enumerate() {
        let mut add = |what: String| problems.push(format!("{path}:{}: {what}", index + 1));
        if let Some(found) = machine_path(&line.replace(KAMAL_HOME, "")) {
            add(format!("names a path of one machine ({found})"));
        }
        if REGISTRY_SETTINGS.iter().any(|setting| line.contains(setting)) {
            add("names a package registry".to_owned());
        }
        if locked && line.starts_with("source = ") && line != LOCKED_SOURCE {
            add("comes from a source other than crates.io".to_owned());
        }
        if spaced && line.ends_with([' ', '\t']) {
            add("ends in white space".to_owned());
        }
        if spaced && line.contains('\t') {
            add("has a tab".to_owned());
        }
    }
}

/// The machine path in a line, if it is a path there and has more components.
fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_PATHS.iter().copied().find(|prefix| {
        line.match_indices(prefix).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + prefix.len()..].chars().next();
            // Within a longer path (of a URL, or a folder of the project) it means something else.
            let alone = before.is_none_or(|c| !c.is_alphanumeric() && !"._-/}*".contains(c));
            alone && after.is_none_or(|c| !" `)".contains(c))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let document = Document { path: path.to_owned(), text: text.to_owned() };
        check(&document, &mut problems);
        problems
    }

    #[test]
    fn machine_paths_are_found_only_as_whole_paths() {
        for path in MACHINE_PATHS {
            let line = format!("folder: {path}ann/x\n");
            assert_eq!(problems("a.yaml", &line).len(), 1, "{line}");
        }
        let inside = format!("https://example.org{}ann, target{}x", MACHINE_PATHS[3], MACHINE_PATHS[0]);
        assert_eq!(problems("a.yaml", &inside), [""; 0]);
    }

    #[test]
    fn white_space_is_checked_only_where_it_has_no_meaning() {
        assert_eq!(problems("a.md", "a \nb\tc\nd\n"), ["a.md:1: ends in white space", "a.md:2: has a tab"]);
        assert_eq!(problems("a.go", "\ta \n"), [""; 0]);
    }

    #[test]
    fn lock_file_must_name_one_source() {
        assert_eq!(problems("Cargo.lock", LOCKED_SOURCE), [""; 0]);
        assert_eq!(problems("Cargo.lock", "source = \"git+https://example.org/x\"").len(), 1);
    }

    #[test]
    fn registry_settings_are_found() {
        let line = format!("{} = \"mirror\"", REGISTRY_SETTINGS[0]);
        assert_eq!(problems(".cargo/config.toml", &line).len(), 1);
    }
}
