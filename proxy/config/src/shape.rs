//! What may stand at a key, as data: what a schema, a reference and a completion are made from.

use serde_yaml::Value;

/// What a value may be.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// A whole number from the first to the second.
    Integer(u64, u64),
    /// A number from the first to the second.
    Number(f64, f64),
    /// True or false.
    Boolean,
    /// Text, if the least length is 1 not an empty one.
    Text { least: usize },
    /// Text in which this regular expression is found.
    Matching(&'static str),
    /// One of these, as they stand.
    OneOf(Vec<Value>),
    /// A list of so many at least and at most.
    List { of: Box<Shape>, least: usize, most: usize },
    /// A map whose keys the user chooses, so many at most.
    Entries { of: Box<Shape>, most: usize },
    /// A map of these keys alone.
    Map(Vec<Key>),
    /// Any of these.
    AnyOf(Vec<Shape>),
}

/// A key of a map.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) is_required: bool,
}

impl Key {
    /// One that may be left out.
    pub(super) fn optional(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, is_required: false }
    }

    /// One that may not.
    pub(super) fn required(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, is_required: true }
    }
}

impl Shape {
    /// Text that is not empty.
    pub(super) const TEXT: Self = Self::Text { least: 1 };

    /// This, or off, which is also YAML 1.1's false.
    pub(super) fn or_off(self) -> Self {
        Self::AnyOf(vec![self, Self::words(&["off"])])
    }

    /// One of these words.
    pub(super) fn words(words: &[&str]) -> Self {
        let mut values: Vec<Value> = words.iter().map(|word| Value::from(*word)).collect();
        if words.contains(&"off") {
            values.push(Value::from(false));
        }
        Self::OneOf(values)
    }

    /// A list of any length up to `most`.
    pub(super) fn list(of: Self, most: usize) -> Self {
        Self::List { of: Box::new(of), least: 0, most }
    }

    /// A list of one at least.
    pub(super) fn some(of: Self, most: usize) -> Self {
        Self::List { of: Box::new(of), least: 1, most }
    }

    /// A map of chosen keys.
    pub(super) fn entries(of: Self, most: usize) -> Self {
        Self::Entries { of: Box::new(of), most }
    }
}
