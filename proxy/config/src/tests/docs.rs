//! The documents: their examples have no mistakes, and the migration guides name no unknown key.

use std::collections::HashSet;
use std::path::Path;

use serde_yaml::Value;

use super::super::problem::Problems;
use super::super::{LogField, Word, parse, root, template};
use super::files::EVERY_MAP;

const PAGES: [&str; 5] = ["caddy.md", "haproxy.md", "kamal-proxy.md", "nginx.md", "traefik.md"];

/// What an example that is a fragment leaves out.
const LISTENERS: &str = "listeners: [{address: '127.0.0.1:8080'}]\n";
const CLUSTERS: &str = "clusters: {default: {endpoints: ['127.0.0.1:3000']}}\n";

fn page(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/migrate");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// The text of each block fenced as `language`.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let opening = format!("```{language}\n");
    text.split(&opening).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// An example as a whole configuration: a fragment gets a listener and a cluster.
fn completed(example: &str) -> String {
    let lacks = |key: &str| !example.lines().any(|line| line.starts_with(key));
    let listeners = if lacks("listeners:") { LISTENERS } else { "" };
    let clusters = if lacks("clusters:") { CLUSTERS } else { "" };
    format!("{listeners}{clusters}{example}")
}

/// Every page of the guide, the README and other documents, by path.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths: Vec<_> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md"].iter().map(|name| root.join(name)).collect();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { paths.push(path) }
        }
    }
    let paths = paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    paths.map(|path| (path.display().to_string(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn examples_in_documents_have_no_mistakes() {
    let mut count = 0;
    for (name, text) in pages() {
        for example in blocks(&text, "yaml") {
            parse(&name, &completed(example), &[]).unwrap_or_else(|error| panic!("{error}\n{example}"));
            count += 1;
        }
    }
    assert!(count > 35, "{count} examples");
}

/// The right-hand cells of the tables, which show sluice's keys. A `|` within backticks would count as a border.
fn right_cells(text: &str) -> impl Iterator<Item = &str> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    rows.filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | ").map(|(_, cell)| cell))
}

#[test]
fn guides_name_only_known_keys() {
    let problems = Problems::default();
    root::read(&serde_yaml::from_str::<Value>(EVERY_MAP).unwrap(), &problems);
    let keys = problems.keys();
    let mut known: HashSet<&str> = keys.iter().map(String::as_str).collect();
    known.extend(LogField::ALL.iter().map(|field| field.word()));
    // Words of the configuration that are not keys.
    known.extend(["least_requests", "random_two", "round_robin", "client_address", "prior_knowledge"]);
    known.extend(template::WORDS);
    for name in PAGES {
        let text = page(name);
        let quoted = right_cells(&text).flat_map(|cell| cell.split('`').skip(1).step_by(2));
        let words = quoted.flat_map(|code| code.split(|c: char| !c.is_ascii_lowercase() && c != '_'));
        let strange: Vec<&str> =
            words.filter(|word| word.trim_matches('_').contains('_') && !known.contains(word)).collect();
        assert_eq!(strange, Vec::<&str>::new(), "{name}");
    }
}

/// Each page shows a configuration of the other proxy, in that proxy's language.
#[test]
fn each_guide_shows_both_sides() {
    for (name, language) in
        [("caddy.md", "caddyfile"), ("haproxy.md", "haproxy"), ("nginx.md", "nginx"), ("traefik.md", "yml")]
    {
        assert!(!blocks(&page(name), language).is_empty(), "{name}");
    }
    assert!(page("kamal-proxy.md").contains("kamal-proxy deploy shop --target"));
}
