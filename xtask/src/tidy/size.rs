//! How long files and functions are. Measures; `ratchet` decides.

use super::ratchet::Excess;
use super::source::{Source, item_end, words};

/// Production lines of a file.
const FILE_MAX: usize = 300;
/// Lines of a file that is tests only.
const TEST_FILE_MAX: usize = 400;
/// Lines of a function outside of tests, its braces included.
const FUNCTION_MAX: usize = 70;
/// What a function should stay under; longer ones are counted.
pub(super) const FUNCTION_AIM: usize = 40;

/// Adds what is over a maximum; returns the number of functions over the aim.
pub(super) fn measure(source: &Source, excesses: &mut Vec<Excess>) -> usize {
    if source.is_tests() {
        let lines = source.text.lines().count();
        if lines > TEST_FILE_MAX {
            excesses.push(Excess::new(source.path, None, lines, TEST_FILE_MAX));
        }
        return 0;
    }
    let lines = source.production_lines();
    if lines > FILE_MAX {
        excesses.push(Excess::new(source.path, None, lines, FILE_MAX));
    }
    let mut over_aim = 0;
    for (name, lines) in functions(&source.production) {
        if lines > FUNCTION_AIM {
            over_aim += 1;
        }
        if lines > FUNCTION_MAX {
            excesses.push(Excess::new(source.path, Some(name), lines, FUNCTION_MAX));
        }
    }
    over_aim
}

/// Name and length in lines of every function with a body.
fn functions(code: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    for at in words(code, "fn") {
        let rest = code[at + 2..].trim_start();
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        // A function pointer type has no name.
        if length == 0 {
            continue;
        }
        if let (end, Some(_)) = item_end(code, at) {
            found.push((&rest[..length], code[at..end].lines().count()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}(f: fn(u8) -> [u8; 4]) -> u8 {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    fn excesses(path: &str, text: &str) -> (Vec<Excess>, usize) {
        let mut excesses = Vec::new();
        let aim = measure(&Source::new(path, text), &mut excesses);
        (excesses, aim)
    }

    #[test]
    fn a_function_of_exactly_the_maximum_passes() {
        let text = function("a", FUNCTION_MAX);
        assert_eq!(excesses("x.rs", &text), (vec![], 1));
        let (found, _) = excesses("x.rs", &function("a", FUNCTION_MAX + 1));
        assert_eq!(found, [Excess::new("x.rs", Some("a"), 71, FUNCTION_MAX)]);
    }

    #[test]
    fn a_declaration_has_no_length() {
        let text = "trait T { fn a(&self) -> [u8; 3]; fn b(); }";
        assert_eq!(functions(text), []);
    }

    #[test]
    fn a_file_counts_without_its_tests() {
        let mut text = "//! x\n".repeat(FILE_MAX);
        text.push_str("#[cfg(test)]\nmod tests {\n// a\n// b\n}\n");
        assert_eq!(excesses("src/x.rs", &text).0, []);
        text.push_str("fn more() {}\n");
        assert_eq!(excesses("src/x.rs", &text).0.len(), 1);
    }

    #[test]
    fn a_file_of_tests_may_be_longer_and_its_functions_too() {
        let mut text = function("table", TEST_FILE_MAX);
        assert_eq!(excesses("src/a/tests/x.rs", &text), (vec![], 0));
        text.push_str("fn more() {}\n");
        assert_eq!(excesses("proxy/tests/it/x.rs", &text).0.len(), 1);
    }
}
