//! The shapes of all keys as a JSON Schema, and the ranges of all numbers for the manual.

use serde_json::{Map, Value, json};

use super::root;
use super::shape::{Key, Shape};
use super::unit::Unit;

/// The version of JSON Schema.
const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// A number's key, minimum and maximum, with units if it counts time or bytes.
pub type NumberRange = (String, String, String);

/// A JSON Schema of the configuration (draft 2020-12). `describe` returns the description of a path, such as
/// `clusters.NAME.pool.idle_timeout_ms` or `listeners[].address`.
///
/// The schema refuses values of the wrong shape; rules that span several keys are left to `sluice check`.
pub fn schema(describe: impl Fn(&str) -> Option<String>) -> Value {
    let mut schema = value(&root::shape(), "", &describe);
    if let Value::Object(map) = &mut schema {
        map.insert("$schema".to_owned(), DRAFT.into());
        map.insert("title".to_owned(), "sluice's configuration".into());
    }
    schema
}

/// The range of every number, by the path of the enclosing map.
pub fn number_ranges() -> Vec<(String, Vec<NumberRange>)> {
    let mut found = Vec::new();
    ranges(&root::shape(), "", &mut found);
    found
}

fn ranges(shape: &Shape, path: &str, found: &mut Vec<(String, Vec<NumberRange>)>) {
    match shape {
        Shape::Map(keys) | Shape::MapWithAny(keys, _) => {
            let numbers: Vec<NumberRange> = keys.iter().filter_map(number_range).collect();
            if !numbers.is_empty() {
                found.push((path.to_owned(), numbers));
            }
            keys.iter().for_each(|key| ranges(&key.shape, &below(path, &bare(key)), found));
        }
        Shape::List { of, .. } => ranges(of, &format!("{path}[]"), found),
        Shape::Entries { of, .. } => ranges(of, &below(path, "NAME"), found),
        Shape::AnyOf(shapes) => shapes.iter().for_each(|shape| ranges(shape, path, found)),
        _ => {}
    }
}

fn number_range(key: &Key) -> Option<NumberRange> {
    match key.shape {
        Shape::Integer(least, most) => Some(match Unit::of(key.name) {
            Some((unit, bare)) => (bare, unit.write(least), unit.write(most)),
            None => (key.name.to_owned(), least.to_string(), most.to_string()),
        }),
        _ => None,
    }
}

/// The name of a key as users write it.
fn bare(key: &Key) -> String {
    Unit::of(key.name).map_or_else(|| key.name.to_owned(), |(_, bare)| bare)
}

fn below(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn value(shape: &Shape, path: &str, describe: &dyn Fn(&str) -> Option<String>) -> Value {
    match shape {
        Shape::Integer(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        Shape::Number(least, most) => json!({"type": "number", "minimum": least, "maximum": most}),
        Shape::Boolean => json!({"type": "boolean"}),
        Shape::Text { least } => json!({"type": "string", "minLength": least}),
        Shape::Matching(pattern) => json!({"type": "string", "pattern": pattern}),
        Shape::OneOf(values) => json!({"enum": values}),
        Shape::List { of, least, most } => {
            let of = value(of, &format!("{path}[]"), describe);
            json!({"type": "array", "items": of, "minItems": least, "maxItems": most})
        }
        Shape::Entries { of, most } => {
            let of = value(of, &below(path, "NAME"), describe);
            json!({"type": "object", "additionalProperties": of, "maxProperties": most})
        }
        Shape::AnyOf(shapes) => {
            let shapes: Vec<Value> = shapes.iter().map(|shape| value(shape, path, describe)).collect();
            json!({"anyOf": shapes})
        }
        Shape::Map(keys) => map(keys, path, describe),
        Shape::MapWithAny(keys, needed) => {
            let mut one = map(keys, path, describe);
            one["anyOf"] = needed.iter().map(|key| json!({"required": [key]})).collect();
            one
        }
    }
}

fn map(keys: &[Key], path: &str, describe: &dyn Fn(&str) -> Option<String>) -> Value {
    let mut properties = Map::new();
    for key in keys {
        let name = bare(key);
        let path = below(path, &name);
        let unit = Unit::of(key.name).map(|(unit, _)| unit);
        let shape = unit.map(|unit| unit.shape(&key.shape, true));
        let mut property = value(shape.as_ref().unwrap_or(&key.shape), &path, describe);
        if !key.is_required {
            property = or_nothing(property);
        }
        if let (Value::Object(map), Some(text)) = (&mut property, describe(&path)) {
            map.insert("description".to_owned(), text.into());
        }
        if let Some(unit) = unit {
            let mut old = or_nothing(value(&unit.shape(&key.shape, false), &path, describe));
            old["deprecated"] = true.into();
            old["description"] = format!("The same as {name}, in {}.", unit.plural()).into();
            properties.insert(key.name.to_owned(), old);
        }
        properties.insert(name, property);
    }
    let required: Vec<&str> = keys.iter().filter(|key| key.is_required).map(|key| key.name).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// A key without a value counts as absent.
fn or_nothing(mut schema: Value) -> Value {
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.push(Value::Null);
    } else if let Some(Value::Array(shapes)) = schema.get_mut("anyOf") {
        shapes.push(json!({"type": "null"}));
    } else if let Some(kind) = schema.get("type").cloned() {
        schema["type"] = json!([kind, "null"]);
    }
    schema
}
