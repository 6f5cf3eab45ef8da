//! Parses YAML text to a tree of values. Only this module reads with `serde_yaml`; it knows no keys.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_yaml::{Mapping, Value};

use super::scan::Stop;

/// Reads one document. The first of repeated keys wins: `scan` has reported the others.
pub(super) fn read(text: &str) -> Result<Value, Stop> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    match serde_yaml::from_str::<Tree>(text) {
        Ok(tree) => Ok(tree.0),
        Err(error) => Err((error.location().map(|at| at.line()), format!("not YAML: {error}"))),
    }
}

/// A value that may have repeated keys, which `Value` itself refuses.
struct Tree(Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, a number, a list or a map")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree(Value::String(value.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(Tree(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree(Value::Sequence(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Tree, A::Error> {
        let mut map = Mapping::new();
        while let Some((Tree(key), Tree(value))) = entries.next_entry()? {
            map.entry(key).or_insert(value);
        }
        // From the inside out, so that a merged map's own merges are resolved before it is merged.
        let merges = map.contains_key("<<");
        let mut value = Value::Mapping(map);
        if merges {
            value.apply_merge().map_err(A::Error::custom)?;
        }
        Ok(Tree(value))
    }
}
