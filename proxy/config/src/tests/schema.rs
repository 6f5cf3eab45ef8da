//! The schema takes what the reader takes, and refuses each mistake that is one of shape.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

use super::super::problem::ConfigError;
use super::super::{schema, tree};

static VALIDATOR: LazyLock<Validator> =
    LazyLock::new(|| jsonschema::draft202012::new(&schema(|_| None)).unwrap());

/// What of a message says that a value has the wrong shape, whatever else the file says.
const OF_SHAPE: &[&str] = &[
    "unknown key",
    "is out of range",
    "a list is here",
    "a map is here",
    "true or false; write",
    "is a number; write",
    "items are too many",
    "nothing is here",
    "is not known",
    "is text; write",
    "address is missing",
    "endpoints is missing",
];

/// What a schema cannot know: the numbers and texts that stand for something else.
const NOT_OF_SHAPE: &[&str] = &["error_pages.", "expected_statuses", "trusted_proxies["];

fn value(text: &str) -> Option<Value> {
    serde_json::to_value(tree::read(text.trim_start_matches('\u{feff}')).ok()?).ok()
}

/// Asserts that a file without a mistake fits the schema.
pub(super) fn takes(text: &str) {
    takes_value(&value(text).unwrap());
}

/// The same of a value.
pub(super) fn takes_value(value: &Value) {
    let found: Vec<String> =
        VALIDATOR.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert_eq!(found, [""; 0], "{value:#}");
}

/// Asserts that a file with a mistake of shape does not fit.
pub(super) fn refuses(text: &str, error: &ConfigError) {
    let is_of_shape = |problem: &str| {
        OF_SHAPE.iter().any(|words| problem.contains(words))
            && !NOT_OF_SHAPE.iter().any(|words| problem.contains(words))
    };
    let of_shape: Vec<String> =
        error.problems.iter().map(ToString::to_string).filter(|problem| is_of_shape(problem)).collect();
    if let (Some(value), false) = (value(text), of_shape.is_empty()) {
        assert!(!VALIDATOR.is_valid(&value), "the schema takes {of_shape:?}\n{text}");
    }
}

#[test]
fn every_file_that_is_shipped_fits() {
    for text in super::files::texts() {
        takes(&text);
    }
}

#[test]
fn keys_are_described_with_their_ranges() {
    let schema = schema(|path| (path == "clusters.NAME.pool.idle_timeout_ms").then(|| "idle".to_owned()));
    let pool = &schema["properties"]["clusters"]["additionalProperties"]["properties"]["pool"]["properties"];
    let expected = serde_json::json!({
        "type": ["integer", "null"], "minimum": 1, "maximum": 86_400_000, "description": "idle",
    });
    assert_eq!(pool["idle_timeout_ms"], expected);
    assert_eq!(schema["required"], serde_json::json!(["listeners"]));
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}
