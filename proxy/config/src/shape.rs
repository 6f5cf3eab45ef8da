//! The shape of each key's value, as data: the source of the schema, the reference and completions.

use serde_yaml::Value;

/// The shape of a value.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// A whole number from the first to the second, inclusive.
    Integer(u64, u64),
    /// A number from the first to the second, inclusive.
    Number(f64, f64),
    /// True or false.
    Boolean,
    /// Text; with a minimum length of 1 it must not be empty.
    Text { least: usize },
    /// Text that matches this regular expression.
    Matching(&'static str),
    /// One of these literal values.
    OneOf(Vec<Value>),
    /// A list, with its minimum and maximum length.
    List { of: Box<Shape>, least: usize, most: usize },
    /// A map with arbitrary keys, and its maximum size.
    Entries { of: Box<Shape>, most: usize },
    /// A map with exactly these keys.
    Map(Vec<Key>),
    /// The same, with at least one of these.
    MapWithAny(Vec<Key>, &'static [&'static str]),
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
    /// An optional key.
    pub(super) fn optional(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, is_required: false }
    }

    /// A required key.
    pub(super) fn required(name: &'static str, shape: Shape) -> Self {
        Self { name, shape, is_required: true }
    }
}

impl Shape {
    /// Text that is not empty.
    pub(super) const TEXT: Self = Self::Text { least: 1 };

    /// This, or off, which YAML 1.1 also reads as false.
    pub(super) fn or_off(self) -> Self {
        Self::AnyOf(vec![self, Self::words(&["off"])])
    }

    /// One of these keywords.
    pub(super) fn words(words: &[&str]) -> Self {
        let mut values: Vec<Value> = words.iter().map(|word| Value::from(*word)).collect();
        if words.contains(&"off") {
            values.push(Value::from(false));
        }
        Self::OneOf(values)
    }

    /// A list of at most `most` items.
    pub(super) fn list(of: Self, most: usize) -> Self {
        Self::List { of: Box::new(of), least: 0, most }
    }

    /// A list of at least one item.
    pub(super) fn some(of: Self, most: usize) -> Self {
        Self::List { of: Box::new(of), least: 1, most }
    }

    /// A map with arbitrary keys.
    pub(super) fn entries(of: Self, most: usize) -> Self {
        Self::Entries { of: Box::new(of), most }
    }
}
