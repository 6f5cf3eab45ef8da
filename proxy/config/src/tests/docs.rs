//! The pages for people who move: what they show is without mistake, and they name no key that is not there.

use std::collections::HashSet;
use std::path::Path;

use serde_yaml::Value;

use super::super::problem::Problems;
use super::super::{LogField, Word, parse, root};
use super::files::EVERY_MAP;

const PAGES: [&str; 3] = ["moving-from-haproxy.md", "moving-from-kamal-proxy.md", "moving-from-nginx.md"];

fn page(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/docs");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// The text of each block fenced as `language`.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let opening = format!("```{language}\n");
    text.split(&opening).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_example_is_without_mistake() {
    for (name, count) in PAGES.into_iter().zip([1, 2, 1]) {
        let text = page(name);
        let examples = blocks(&text, "yaml");
        assert_eq!(examples.len(), count, "{name}");
        for example in examples {
            parse(name, example, &[]).unwrap_or_else(|error| panic!("{error}\n{example}"));
        }
    }
}

/// The right cells of the tables: what stands for sluice. A `|` within backticks would count as a border.
fn right_cells(text: &str) -> impl Iterator<Item = &str> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    rows.filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | ").map(|(_, cell)| cell))
}

#[test]
fn every_key_named_is_a_key() {
    let problems = Problems::default();
    root::read(&serde_yaml::from_str::<Value>(EVERY_MAP).unwrap(), &problems);
    let mut known: HashSet<&str> = problems.keys().into_iter().collect();
    known.extend(LogField::ALL.iter().map(|field| field.word()));
    // Words of the configuration that are no keys.
    known.extend(["least_requests", "random_two", "round_robin", "client_address", "prior_knowledge"]);
    for name in PAGES {
        let text = page(name);
        let quoted = right_cells(&text).flat_map(|cell| cell.split('`').skip(1).step_by(2));
        let words = quoted.flat_map(|code| code.split(|c: char| !c.is_ascii_lowercase() && c != '_'));
        let strange: Vec<&str> =
            words.filter(|word| word.trim_matches('_').contains('_') && !known.contains(word)).collect();
        assert_eq!(strange, Vec::<&str>::new(), "{name}");
    }
}

/// Languages that other proxies are configured in stand for the side from which one moves.
#[test]
fn each_page_shows_both_sides() {
    assert_eq!(blocks(&page("moving-from-nginx.md"), "nginx").len(), 1);
    assert_eq!(blocks(&page("moving-from-haproxy.md"), "haproxy").len(), 1);
    assert!(page("moving-from-kamal-proxy.md").contains("kamal-proxy deploy shop --target"));
}
