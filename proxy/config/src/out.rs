//! Values under construction, for the output of `sluice config`.

use std::path::Path;

use serde_yaml::{Mapping, Value};

use super::unit::Unit;

/// A map under construction.
#[derive(Default)]
pub(super) struct Out(pub(super) Mapping);

impl Out {
    pub(super) fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(Value::from(key), value.into());
    }

    pub(super) fn put_some(&mut self, key: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.put(key, value);
        }
    }

    /// The value of a key of a table. One that counts time or bytes is written with its unit, and its name without.
    pub(super) fn put_key(&mut self, key: &str, value: Option<Value>) {
        let Some(value) = value else { return };
        match Unit::of(key) {
            Some((unit, bare)) => {
                let value = value.as_u64().map_or(value, |number| match number {
                    0 => 0.into(),
                    _ => unit.write(number).into(),
                });
                self.put(&bare, value);
            }
            None => self.put(key, value),
        }
    }

    pub(super) fn done(self) -> Value {
        Value::Mapping(self.0)
    }
}

pub(super) fn list<T>(items: &[T], one: impl Fn(&T) -> Value) -> Value {
    Value::Sequence(items.iter().map(one).collect())
}

pub(super) fn texts(items: &[String]) -> Value {
    list(items, |text| Value::from(text.as_str()))
}

/// Paths come from YAML text, so they are UTF-8.
pub(super) fn file(path: &Path) -> Value {
    Value::from(path.display().to_string())
}
