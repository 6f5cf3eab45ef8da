//! Reads a value tree key by key and reports every mistake, instead of stopping at the first.
//!
//! Knows the kinds of YAML values, but not the meaning of any key.

use std::ops::RangeInclusive;

use serde_yaml::{Mapping, Value};

use super::names::Word;
use super::nearest::nearest;
use super::path::Path;
use super::problem::{Problems, quote};
use super::text::Check;
use super::unit::{Counted, Unit};

/// A value, its position, and where its mistakes are reported.
#[derive(Clone)]
pub(super) struct Item<'a> {
    pub(super) value: &'a Value,
    pub(super) path: Path,
    pub(super) problems: &'a Problems,
    /// What a number here counts, if the key's name says it.
    pub(super) counted: Option<Counted>,
}

impl<'a> Item<'a> {
    pub(super) fn new(value: &'a Value, path: Path, problems: &'a Problems) -> Self {
        Self { value, path, problems, counted: None }
    }

    pub(super) fn mistake(&self, message: impl Into<String>) {
        self.problems.add(&self.path, message);
    }

    /// Reports that the value is not what `write` describes.
    pub(super) fn wrong_kind(&self, write: &str) {
        self.mistake(format!("{}; write {write}", self.shown()));
    }

    /// The value as a message shows it.
    pub(super) fn shown(&self) -> String {
        match self.value {
            Value::Null => "found no value".into(),
            Value::Bool(value) => format!("{value} is a boolean"),
            Value::Number(value) => format!("{value} is a number"),
            Value::String(text) => format!("{} is text", quote(text)),
            Value::Sequence(_) => "found a list".into(),
            Value::Mapping(_) => "found a map".into(),
            Value::Tagged(_) => "found a tag".into(),
        }
    }

    /// Text that is not empty.
    pub(super) fn text(&self) -> Option<&'a str> {
        let text = self.any_text()?;
        if text.is_empty() {
            self.mistake("the text is empty; write a value or remove the key");
            return None;
        }
        Some(text)
    }

    /// Text, which may be empty.
    pub(super) fn any_text(&self) -> Option<&'a str> {
        match self.value {
            Value::String(text) => Some(text),
            Value::Bool(_) | Value::Number(_) => {
                self.wrong_kind("text, in quotes");
                None
            }
            _ => {
                self.wrong_kind("text");
                None
            }
        }
    }

    /// Text that passes a check.
    pub(super) fn checked(&self, check: impl Fn(&str) -> Check) -> Option<String> {
        let text = self.text()?;
        match check(text) {
            Ok(()) => Some(text.to_owned()),
            Err(message) => {
                self.mistake(message);
                None
            }
        }
    }

    /// A whole number within `range`. For a key that counts time or bytes, text with a unit is accepted as well.
    pub(super) fn counted(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let Some(Counted { unit, needs_unit }) = self.counted else {
            return self.number(range, "a whole number");
        };
        let write = || {
            let (low, high) = (unit.write(*range.start()), unit.write(*range.end()));
            format!("{} from {low} to {high}", unit.kind())
        };
        let number = match self.value {
            Value::String(text) => match unit.read(text) {
                Some(number) => number,
                None => {
                    self.wrong_kind(&write());
                    return None;
                }
            },
            Value::Number(number) if needs_unit && number.as_u64() != Some(0) => {
                let suggestion = number.as_u64().map(|number| format!(", such as {}", unit.write(number)));
                let suggestion = suggestion.unwrap_or_default();
                self.mistake(format!("{number} has no unit; write {}{suggestion}", write()));
                return None;
            }
            _ if !needs_unit => return self.number(range, unit.plural()),
            Value::Number(_) => 0,
            _ => {
                self.wrong_kind(&write());
                return None;
            }
        };
        if !range.contains(&number) {
            let shown = self.value.as_str().unwrap_or("0");
            self.mistake(format!("{shown} is out of range; write {}", write()));
            return None;
        }
        Some(number)
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        let value = self.value.as_bool();
        if value.is_none() {
            self.wrong_kind("true or false");
        }
        value
    }

    /// A whole number within `range`.
    pub(super) fn number(&self, range: RangeInclusive<u64>, unit: &str) -> Option<u64> {
        let (low, high) = (range.start(), range.end());
        match self.value {
            Value::Number(number) => match number.as_u64() {
                Some(value) if range.contains(&value) => Some(value),
                _ => {
                    self.mistake(format!("{number} is out of range; write {unit} from {low} to {high}"));
                    None
                }
            },
            _ => {
                self.wrong_kind(&format!("{unit} from {low} to {high}"));
                None
            }
        }
    }

    /// One of the keywords of `T`; `off` is also YAML 1.1's false.
    pub(super) fn one_of<T: Word>(&self) -> Option<T> {
        let text = if self.is_off() { "off" } else { self.value.as_str().unwrap_or_default() };
        let found = T::ALL.iter().copied().find(|choice| choice.word() == text);
        if found.is_none() {
            let words: Vec<&str> = T::ALL.iter().map(|choice| choice.word()).collect();
            self.not_one_of(&words);
        }
        found
    }

    /// Reports that the value is not one of `words`.
    pub(super) fn not_one_of(&self, words: &[&str]) {
        let Value::String(text) = self.value else {
            return self.wrong_kind(&any_of(words));
        };
        let hint = match nearest(text, words) {
            Some(word) => format!("did you mean {word}?"),
            None => format!("write {}", any_of(words)),
        };
        self.mistake(format!("{} is not known; {hint}", quote(text)));
    }

    /// Whether the value is `off`, which YAML 1.1 also reads as false.
    pub(super) fn is_off(&self) -> bool {
        matches!(self.value, Value::Bool(false)) || self.value.as_str() == Some("off")
    }

    /// The items of a list, at most `max` of them.
    pub(super) fn list(&self, max: usize) -> Vec<Item<'a>> {
        let Value::Sequence(items) = self.value else {
            self.wrong_kind("a list");
            return Vec::new();
        };
        if items.len() > max {
            self.mistake(format!("{} items exceed the limit; write at most {max}", items.len()));
        }
        let items = items.iter().take(max).enumerate();
        items.map(|(index, value)| Item::new(value, self.path.index(index), self.problems)).collect()
    }

    /// The entries of a map with arbitrary keys, at most `max` of them; a key may be a number.
    pub(super) fn entries(&self, max: usize) -> Vec<(String, Item<'a>)> {
        let Value::Mapping(map) = self.value else {
            self.wrong_kind("a map");
            return Vec::new();
        };
        if map.len() > max {
            self.mistake(format!("{} entries exceed the limit; write at most {max}", map.len()));
        }
        let mut entries = Vec::new();
        for (key, value) in map.iter().take(max) {
            if let Some(key) = key_text(key) {
                let item = Item::new(value, self.path.key(&key), self.problems);
                entries.push((key, item));
            } else {
                self.mistake("a key is not text; write it in quotes");
            }
        }
        entries
    }

    /// The keys of a map with a fixed set of keys.
    pub(super) fn fields(&self) -> Fields<'a> {
        static EMPTY: std::sync::LazyLock<Mapping> = std::sync::LazyLock::new(Mapping::new);
        let (map, broken) = match self.value {
            Value::Mapping(map) => (map, false),
            Value::Null => (&*EMPTY, false),
            _ => {
                self.wrong_kind("a map");
                (&*EMPTY, true)
            }
        };
        Fields {
            map,
            broken,
            path: self.path.clone(),
            problems: self.problems,
            known: Vec::new(),
            outdated: Vec::new(),
        }
    }
}

/// A map with known keys. `finish` reports unknown ones.
pub(super) struct Fields<'a> {
    map: &'a Mapping,
    /// The value is not a map: missing keys are not reported as well.
    broken: bool,
    pub(super) path: Path,
    pub(super) problems: &'a Problems,
    known: Vec<String>,
    /// Names with a unit, which are read and not suggested.
    outdated: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The value of a key; a key without a value counts as absent. A key that counts time or bytes has two names: the one
    /// in the tables, and that without its unit.
    pub(super) fn get(&mut self, key: &'static str) -> Option<Item<'a>> {
        let Some((unit, bare)) = Unit::of(key) else {
            self.note(key);
            return self.find(key, None);
        };
        self.note(&bare);
        if !self.outdated.contains(&key) {
            self.outdated.push(key);
        }
        let old = self.find(key, Some(Counted { unit, needs_unit: false }));
        let new = self.find(&bare, Some(Counted { unit, needs_unit: true }));
        match (&old, &new) {
            (Some(old), Some(_)) => old.mistake(format!("{bare} is the same key; write that alone")),
            (Some(old), None) => self.problems.note_outdated(&old.path, &bare, || match old.value {
                Value::Number(number) => number.as_u64().map(|number| unit.write(number)),
                _ => None,
            }),
            _ => {}
        }
        new.or(old)
    }

    fn note(&mut self, key: &str) {
        if !self.known.iter().any(|known| known == key) {
            self.known.push(key.to_owned());
            self.problems.note_key(key);
        }
    }

    fn find(&self, key: &str, counted: Option<Counted>) -> Option<Item<'a>> {
        let value = self.map.get(key).filter(|value| !value.is_null())?;
        Some(Item { counted, ..Item::new(value, self.path.key(key), self.problems) })
    }

    /// The value of a required key.
    pub(super) fn require(&mut self, key: &'static str, write: &str) -> Option<Item<'a>> {
        let found = self.get(key);
        if found.is_none() && !self.broken {
            self.mistake(format!("{key} is missing; write {write}"));
        }
        found
    }

    /// Reports a key without a value. Elsewhere it counts as absent; where a missing value would let more through than
    /// was meant, an empty variable of a template must not go unnoticed.
    pub(super) fn refuse_null(&self, key: &'static str, write: &str) {
        if self.map.get(key).is_some_and(Value::is_null) {
            self.problems
                .add(&self.path.key(key), format!("found no value; write {write} or remove the key"));
        }
    }

    pub(super) fn mistake(&self, message: impl Into<String>) {
        self.problems.add(&self.path, message);
    }

    /// Whether the value is not a map, so that nothing else is reported about it.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(super) fn text(&mut self, key: &'static str) -> Option<&'a str> {
        self.get(key).and_then(|item| item.text())
    }

    /// A whole number.
    pub(super) fn number(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        self.get(key)?.counted(range)
    }

    pub(super) fn one_of<T: Word>(&mut self, key: &'static str, default: T) -> T {
        self.get(key).and_then(|item| item.one_of()).unwrap_or(default)
    }

    /// Reports the keys that were not read.
    pub(super) fn finish(self) {
        for key in self.map.keys() {
            let Some(key) = key_text(key) else {
                self.mistake("a key is not text; remove it");
                continue;
            };
            if !self.known.contains(&key) && !self.outdated.contains(&key.as_str()) {
                let known: Vec<&str> = self.known.iter().map(String::as_str).collect();
                let hint = match nearest(&key, &known).or_else(|| nearest(&key, &self.outdated)) {
                    Some(known) => format!("did you mean {known}?"),
                    None => format!("known here: {}", known.join(", ")),
                };
                self.problems.add(&self.path.key(&key), format!("unknown key; {hint}"));
            }
        }
    }
}

/// A key as text; numbers are accepted (`503: page.html`).
fn key_text(key: &Value) -> Option<String> {
    match key {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

/// `a, b or c`.
fn any_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}
