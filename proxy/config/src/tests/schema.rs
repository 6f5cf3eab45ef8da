//! The schema accepts what the reader accepts, and refuses values of the wrong shape.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

use super::super::problem::ConfigError;
use super::super::{schema, tree};

static VALIDATOR: LazyLock<Validator> =
    LazyLock::new(|| jsonschema::draft202012::new(&schema(|_| None)).unwrap());

/// Parts of messages about values of the wrong shape, whatever else the file contains.
const OF_SHAPE: &[&str] = &[
    "unknown key",
    "is out of range",
    "found a list",
    "found a map",
    "is a boolean; write",
    "is a number; write",
    "items exceed the limit",
    "found no value",
    "is not known",
    "is text; write",
    "address is missing",
    "endpoints is missing",
];

/// What a schema cannot know: numbers and texts with a meaning of their own.
const NOT_OF_SHAPE: &[&str] = &[
    "error_pages.",
    "expected_statuses",
    "trusted_proxies[",
    "client[",
    "access: found no",
    "allow: found no",
    "rate_limits: found no",
    "auth: found no",
];

fn value(text: &str) -> Option<Value> {
    serde_json::to_value(tree::read(text.trim_start_matches('\u{feff}')).ok()?).ok()
}

/// Asserts that a file without mistakes fits the schema.
pub(super) fn takes(text: &str) {
    takes_value(&value(text).unwrap());
}

/// The same for a value.
pub(super) fn takes_value(value: &Value) {
    let found: Vec<String> =
        VALIDATOR.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert_eq!(found, [""; 0], "{value:#}");
}

/// Asserts that a file with a mistake of shape does not fit the schema.
pub(super) fn refuses(text: &str, error: &ConfigError) {
    let is_of_shape = |problem: &str| {
        OF_SHAPE.iter().any(|words| problem.contains(words))
            && !NOT_OF_SHAPE.iter().any(|words| problem.contains(words))
    };
    let of_shape: Vec<String> =
        error.problems.iter().map(ToString::to_string).filter(|problem| is_of_shape(problem)).collect();
    if let (Some(value), false) = (value(text), of_shape.is_empty()) {
        assert!(!VALIDATOR.is_valid(&value), "the schema accepts {of_shape:?}\n{text}");
    }
}

#[test]
fn every_shipped_file_fits_the_schema() {
    for text in super::files::texts() {
        takes(&text);
    }
}

#[test]
fn keys_are_described_with_their_ranges() {
    let schema = schema(|path| (path == "clusters.NAME.pool.idle_timeout").then(|| "idle".to_owned()));
    let pool = &schema["properties"]["clusters"]["additionalProperties"]["properties"]["pool"]["properties"];
    let text = serde_json::json!({"type": "string", "pattern": "^0$|^([0-9]+(ms|s|m|h|d))+$"});
    let expected = serde_json::json!({"anyOf": [text, {"type": "null"}], "description": "idle"});
    assert_eq!(pool["idle_timeout"], expected);
    let number = serde_json::json!({"type": "integer", "minimum": 1, "maximum": 86_400_000});
    let expected = serde_json::json!({
        "anyOf": [number, text, {"type": "null"}],
        "deprecated": true,
        "description": "The same as idle_timeout, in milliseconds.",
    });
    assert_eq!(pool["idle_timeout_ms"], expected);
    assert_eq!(schema["required"], serde_json::json!(["listeners"]));
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
}
