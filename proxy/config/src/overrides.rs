//! Keys set on the command line: `--set clusters.api.response_timeout_ms=5000`.
//!
//! They are applied to the value tree before it is read, so they are checked like the file's own values.

use crate::Mistake;
use std::str::FromStr;

use serde_yaml::{Mapping, Value};

use super::lines::Lines;
use super::path::{Path, Segment};
use super::problem::{Problems, quote};
use super::unit::is_same_key;
use super::{scan, tree};

/// Maximum steps of a path; the deepest known key has six.
const STEPS_MAX: usize = 32;

/// One key set on the command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    path: Path,
    value: Value,
    flag: &'static str,
}

impl Override {
    /// Sets the key at `path`. Mistakes name `flag`; `value` is plain text, not YAML.
    ///
    /// # Errors
    /// If `path` is not a path.
    pub fn text(flag: &'static str, path: &str, value: &str) -> Result<Self, Mistake> {
        Ok(Self { path: path.parse()?, value: Value::String(value.to_owned()), flag })
    }

    /// Like `text`, for a number.
    ///
    /// # Errors
    /// If `path` is not a path.
    pub fn number(flag: &'static str, path: &str, value: u64) -> Result<Self, Mistake> {
        Ok(Self { path: path.parse()?, value: Value::from(value), flag })
    }
}

impl FromStr for Override {
    type Err = Mistake;

    /// Parses `PATH=VALUE`, the argument of `--set`; the value is YAML.
    fn from_str(text: &str) -> Result<Self, Mistake> {
        let (path, value) =
            split(text).ok_or_else(|| format!("{} has no =; write PATH=VALUE", quote(text)))?;
        let path: Path = path.parse()?;
        if path.0.len() > STEPS_MAX {
            return Err(format!("the path has more than {STEPS_MAX} steps; write the path of a key").into());
        }
        let repeated = Problems::default();
        scan::scan(value, &repeated).map_err(|(_, message)| message)?;
        if let Some(problem) = repeated.finish(&Lines::default(), &[]).first() {
            return Err(problem.to_string().into());
        }
        let value = tree::read(value).map_err(|(_, message)| message)?;
        Ok(Self { path, value, flag: "--set" })
    }
}

/// Splits at the first `=` outside quotes.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '=' if !quoted => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

/// Applies every override in order; returns the paths written and the flag each came from.
pub(super) fn apply(
    root: &mut Value,
    overrides: &[Override],
    problems: &Problems,
) -> Vec<(Path, &'static str)> {
    let mut written = Vec::new();
    for one in overrides {
        match set(root, one) {
            Ok(path) => written.push((path, one.flag)),
            Err(message) => {
                problems.add(&one.path, message);
                written.push((one.path.clone(), one.flag));
            }
        }
    }
    written
}

/// Applies one; returns the path below which the tree comes from the command line.
fn set(root: &mut Value, one: &Override) -> Result<Path, Mistake> {
    let mut node = root;
    let mut path = Path::root();
    let mut made = None;
    for segment in &one.path.0 {
        if node.is_null() && is_named_list(&path) {
            return Err(format!("{path} has no items; --set changes items but cannot add them").into());
        }
        if node.is_null() && !path.0.is_empty() && made.is_none() {
            made = Some(path.clone());
        }
        widen(node, &path);
        (node, path) = step(node, path, segment)?;
    }
    *node = one.value.clone();
    Ok(made.unwrap_or(path))
}

fn is_named_list(path: &Path) -> bool {
    matches!(path.0.as_slice(), [Segment::Key(key)] if key == "listeners" || key == "routes")
}

/// Turns an empty value into a map, and a short form into its long form.
fn widen(node: &mut Value, path: &Path) {
    let key = match path.0.as_slice() {
        [Segment::Key(key)] if key == "access_log" => "output",
        [Segment::Key(key)] if key == "admin" => "address",
        [.., Segment::Key(key), Segment::Index(_)] if key == "endpoints" => "address",
        _ if node.is_null() => "",
        _ => return,
    };
    if node.is_mapping() || node.is_sequence() {
        return;
    }
    let mut map = Mapping::new();
    if !node.is_null() {
        map.insert(Value::from(key), node.clone());
    }
    *node = Value::Mapping(map);
}

fn step<'v>(node: &'v mut Value, path: Path, segment: &Segment) -> Result<(&'v mut Value, Path), Mistake> {
    match node {
        Value::Sequence(items) => {
            let count = items.len();
            let index = position(items, segment);
            let found = index.and_then(|index| Some((items.get_mut(index)?, path.index(index))));
            found.ok_or_else(|| {
                let name = Path(vec![segment.clone()]);
                format!("{path} has no item {name} (length {count}); write a name or an index from 0").into()
            })
        }
        Value::Mapping(map) => match segment {
            Segment::Key(key) => {
                let path = path.key(key);
                // The file may use the name with the unit, or the one without.
                let is_old = |(name, value): (&Value, &Value)| {
                    let name = name.as_str().filter(|name| *name != key && is_same_key(name, key))?;
                    (!value.is_mapping() && !value.is_sequence()).then(|| name.to_owned())
                };
                if let Some(old) = map.iter().find_map(is_old) {
                    map.remove(old.as_str());
                }
                // A key may be a number, as in error_pages.
                let number =
                    key.parse::<u64>().ok().map(Value::from).filter(|number| map.contains_key(number));
                let key = number.unwrap_or_else(|| Value::from(key.as_str()));
                Ok((map.entry(key).or_insert(Value::Null), path))
            }
            Segment::Index(_) => {
                Err(format!("{path} is not a list; write a key instead of the index").into())
            }
        },
        _ => Err(format!("{path} is neither a map nor a list; nothing can be set below it").into()),
    }
}

/// Finds a list item by its name, by the key it would be named after, or by index.
fn position(items: &[Value], segment: &Segment) -> Option<usize> {
    let key = match segment {
        Segment::Index(index) => return Some(*index),
        Segment::Key(key) => key,
    };
    let text = |item: &Value, of: &str| item.get(of).and_then(Value::as_str) == Some(key);
    let nameless = |item: &Value| item.get("name").is_none_or(Value::is_null);
    let named = items.iter().position(|item| text(item, "name"));
    let implied =
        || items.iter().position(|item| nameless(item) && (text(item, "address") || text(item, "cluster")));
    named.or_else(implied).or_else(|| key.parse().ok())
}
