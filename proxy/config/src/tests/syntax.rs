//! YAML syntax: what is not YAML, what sluice refuses of it, its limits; and that no input panics.

use proptest::prelude::*;

use super::super::{Override, parse};
use super::{GOOD, mistakes, read};

#[test]
fn syntax_errors_give_line_and_column() {
    for (text, expected) in [
        ("a:\n  b: 1\n c: 2", "c.yaml:3: column 2: not YAML: "),
        ("a: [1", "c.yaml:"),
        ("hosts: [*.a.b]", "c.yaml:1: column 9: not YAML: "),
        ("a: !x 1", "c.yaml:1: tags such as !name are not supported; remove it"),
        ("a: 1\n---\nb: 2", "c.yaml:2: a second document starts here; keep only one"),
        ("a: &x [*x]", "c.yaml:1: an alias refers to its own anchor; write the value out"),
        ("? [a]\n: 1", "c.yaml:1: a map, list or alias is used as a key; write text"),
        ("text", "c.yaml: \"text\" is text; write a map"),
        ("", "c.yaml: listeners: no listeners; write at least one with an address"),
    ] {
        let found = mistakes(text);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}: {found:?}");
    }
    assert!(mistakes("hosts: [*.a.b]")[0].ends_with("put a value that begins with * in quotes"));
    assert!(mistakes("a: 1\n\tb: 2")[0].ends_with("indent with spaces"));
}

#[test]
fn repeated_keys_are_reported_with_the_rest() {
    let found = mistakes(&format!(
        "{GOOD}via: true\nvia: false\nlimits: {{headers_max: 1, headers_max: 2}}\nuser: 1\n"
    ));
    assert_eq!(
        found,
        [
            "c.yaml:4: via: the key \"via\" is repeated on line 5 (first on line 4); keep one",
            "c.yaml:6: limits.headers_max: the key \"headers_max\" is repeated on line 6 (first on line \
             6); keep one",
            "c.yaml:7: user: 1 is a number; write text, in quotes",
        ]
    );
}

#[test]
fn anchors_aliases_and_merges_work() {
    let config = read(
        "listeners: [{address: 'a:1'}]\nroutes: [{cluster: a}, {cluster: b, path_prefix: /b}]\nclusters:\n  \
         a: &a {endpoints: ['a:1'], fail_open: false, pool: &p {idle_timeout_ms: 7}}\n  \
         b: {<<: *a, endpoints: ['b:1']}\n  c: {<<: {<<: *a}, pool: *p}\n",
    );
    let b = &config.clusters["b"];
    assert_eq!((b.fail_open, b.pool.idle_timeout_ms, b.endpoints.len()), (false, 7, 1));
    assert_eq!(b.endpoints[0].address.to_string(), "b:1");
    assert_eq!(config.clusters["c"], config.clusters["a"]);
}

#[test]
fn size_depth_and_aliases_are_bounded() {
    let exact = format!("{GOOD}#{}", "x".repeat((1 << 20) - GOOD.len() - 1));
    assert_eq!(exact.len(), 1 << 20);
    read(&exact);
    assert_eq!(mistakes(&format!("{exact}x")), ["c.yaml: larger than 1048576 bytes; make it smaller"]);

    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(mistakes(&deep(33))[0].contains("more than 32 nested maps and lists"));
    assert_eq!(mistakes(&deep(32)), ["c.yaml: found a list; write a map"]);
    assert_eq!(mistakes(&"[".repeat(1 << 20)).len(), 1);
    assert_eq!(mistakes(&"- ".repeat(1 << 19)).len(), 1);

    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (from, to) in "abcdefgh".chars().zip("bcdefghi".chars()) {
        bomb += &format!("{to}: &{to} [{}]\n", vec![format!("*{from}"); 9].join(", "));
    }
    assert!(mistakes(&bomb)[0].contains("more than 200000 values"));
}

#[test]
fn keys_and_messages_are_bounded() {
    let key = |bytes: usize| format!("{GOOD}{}: 1\n", "k".repeat(bytes));
    assert!(mistakes(&key(512))[0].contains("unknown key"));
    assert_eq!(mistakes(&key(513)), ["c.yaml:4: a key has more than 512 bytes; shorten it"]);

    let unknown =
        |count: usize| (0..count).fold(GOOD.to_owned(), |text, index| format!("{text}x{index}: 1\n"));
    assert_eq!(mistakes(&unknown(1000)).len(), 1000);
    let found = mistakes(&unknown(1003));
    assert_eq!((found.len(), found[1000].as_str()), (1001, "c.yaml: 3 more mistakes are not shown"));
}

#[test]
fn a_byte_order_mark_is_no_mistake() {
    read(&format!("\u{feff}{GOOD}"));
}

/// Changes some characters of a text: removes, doubles or replaces them.
fn mutated(text: &'static str) -> impl Strategy<Value = String> {
    let length = text.chars().count();
    let signs =
        prop::sample::select("[]{}:,&*!|>'\"#%@`\n\t -?0a\u{85}\u{feff}é".chars().collect::<Vec<_>>());
    prop::collection::vec((0..length, 0..3u8, signs), 1..8).prop_map(move |edits| {
        let mut chars: Vec<char> = text.chars().collect();
        for (at, kind, sign) in edits {
            let at = at.min(chars.len().saturating_sub(1));
            match kind {
                0 => drop(chars.remove(at)),
                1 => chars.insert(at, sign),
                _ => chars[at] = sign,
            }
        }
        chars.into_iter().collect()
    })
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = parse("c.yaml", &text, &[]);
    }

    #[test]
    fn no_yaml_like_text_panics(text in "[a-z0-9:\\-\\[\\]{},&*!|>'\"#%?~<.\n\t ]{0,200}") {
        let _ = parse("c.yaml", &text, &[]);
    }

    #[test]
    fn no_mutated_real_file_panics(text in mutated(include_str!("../../../../config/sluice.yaml"))) {
        let _ = parse("c.yaml", &text, &[]);
    }

    #[test]
    fn no_mutated_example_panics(text in mutated(include_str!("../../../../config/examples/go.yaml"))) {
        let _ = parse("c.yaml", &text, &[]);
    }

    #[test]
    fn no_override_panics(path in "([a-z0-9\\[\\]\".]{0,12}|listeners\\.0|clusters\\.api|access_log)(\\.[a-z_]{0,8})?", value in "\\PC{0,20}") {
        if let Ok(one) = format!("{path}={value}").parse::<Override>() {
            let _ = parse("c.yaml", GOOD, &[one]);
        }
    }
}
