//! Parses YAML text into a configuration or all its mistakes, and writes a configuration back.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_yaml::{Mapping, Value};

use super::disk;
use super::out::list;
use super::problem::{ConfigError, Problem, Problems};
use super::reader::Item;
use super::{Config, Endpoint, Override, clusters, overrides, root, scan, tree};

/// Maximum bytes of a configuration file: about ten thousand routes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a file, and checks that the files it names can be used.
///
/// # Errors
/// All mistakes of the file and of `overrides`.
pub fn load(path: &Path, overrides: &[Override]) -> Result<Config, ConfigError> {
    let name = path.display().to_string();
    let whole = |message: String| ConfigError::whole(&name, None, message);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| whole(format!("cannot be opened: {error}")))?;
    let taken = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    taken.map_err(|error| whole(format!("cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        whole(format!("byte {} is not UTF-8; save the file as UTF-8", error.utf8_error().valid_up_to() + 1))
    })?;
    read(&name, &text, overrides, disk::check)
}

/// The keys of a file that have their old names, with a unit. Empty if the file cannot be read.
pub fn outdated_keys(path: &Path) -> Vec<Problem> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let problems = Problems::default();
    let Ok(lines) = scan::scan(text, &problems) else { return Vec::new() };
    let Ok(tree) = tree::read(text) else { return Vec::new() };
    root::read(&tree, &problems);
    problems.outdated(&lines)
}

/// Parses YAML text. Opens no files and never panics, whatever the text.
///
/// # Errors
/// All mistakes of the text and of `overrides`; `source_name` stands for the file.
pub fn parse(source_name: &str, text: &str, overrides: &[Override]) -> Result<Config, ConfigError> {
    read(source_name, text, overrides, |_, _| {})
}

/// Parses a list of endpoints, as a cluster's `endpoints`, of at most `most`. Without duplicates.
///
/// # Errors
/// All mistakes of the text; `source_name` stands for where it comes from.
pub fn parse_endpoints(source_name: &str, text: &str, most: usize) -> Result<Vec<Endpoint>, ConfigError> {
    part(source_name, text, |item| clusters::found(item, most))
}

/// Writes a list of endpoints as [`parse_endpoints`] reads it.
pub fn write_endpoints(endpoints: &[Endpoint]) -> String {
    text(&list(endpoints, clusters::write_endpoint))
}

/// Parses one endpoint, as in a cluster's `endpoints`.
///
/// # Errors
/// As for [`parse_endpoints`].
pub fn parse_endpoint(source_name: &str, text: &str) -> Result<Endpoint, ConfigError> {
    if let Some(endpoint) = endpoint_of_json(text) {
        return Ok(endpoint);
    }
    let one = part(source_name, text, clusters::found_one)?;
    one.ok_or_else(|| {
        ConfigError::whole(source_name, None, "this is no endpoint; write host:port".to_owned())
    })
}

/// JSON is YAML as well, and much quicker to read. `None` if it is none, or has mistakes, which need lines.
fn endpoint_of_json(text: &str) -> Option<Endpoint> {
    let tree = serde_json::from_str::<Value>(text).ok()?;
    let problems = Problems::default();
    let found = clusters::found_one(&Item::new(&tree, super::path::Path::default(), &problems));
    found.filter(|_| problems.is_empty())
}

/// Reads something that stands elsewhere than in the configuration.
fn part<T>(source_name: &str, text: &str, read: impl Fn(&Item<'_>) -> T) -> Result<T, ConfigError> {
    let whole = |(line, message)| ConfigError::whole(source_name, line, message);
    let problems = Problems::default();
    let lines = scan::scan(text, &problems).map_err(whole)?;
    let tree = tree::read(text).map_err(whole)?;
    let found = read(&Item::new(&tree, super::path::Path::default(), &problems));
    let problems = problems.finish(&lines, &Vec::default());
    if problems.is_empty() {
        return Ok(found);
    }
    Err(ConfigError { source_name: source_name.to_owned(), problems })
}

fn read(
    source_name: &str,
    text: &str,
    overrides: &[Override],
    further: impl Fn(&Config, &Problems),
) -> Result<Config, ConfigError> {
    let whole = |(line, message)| ConfigError::whole(source_name, line, message);
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(whole((None, format!("larger than {FILE_BYTES_MAX} bytes; make it smaller"))));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let problems = Problems::default();
    let lines = scan::scan(text, &problems).map_err(whole)?;
    let mut tree = tree::read(text).map_err(whole)?;
    let flags = overrides::apply(&mut tree, overrides, &problems);
    let config = root::read(&tree, &problems);
    further(&config, &problems);
    let problems = problems.finish(&lines, &flags);
    if problems.is_empty() {
        return Ok(config);
    }
    Err(ConfigError { source_name: source_name.to_owned(), problems })
}

/// The YAML of one listener, one route and one cluster, each named `default`, for `--listen` and `--to`.
pub fn short_form(listen: &str, to: &[String]) -> String {
    let map = |entries: &[(&str, Value)]| {
        let entries = entries.iter().map(|(key, value)| (Value::from(*key), value.clone()));
        Value::Mapping(entries.collect::<Mapping>())
    };
    let listener = map(&[("name", "default".into()), ("address", listen.into())]);
    let route = map(&[("name", "default".into()), ("cluster", "default".into())]);
    let endpoints = to.iter().map(|address| Value::from(address.as_str())).collect();
    let cluster = map(&[("endpoints", Value::Sequence(endpoints))]);
    let tree = map(&[
        ("listeners", Value::Sequence(vec![listener])),
        ("routes", Value::Sequence(vec![route])),
        ("clusters", map(&[("default", cluster)])),
    ]);
    text(&tree)
}

/// The effective configuration as YAML, with all defaults; it parses back to an equal one.
pub fn to_yaml(config: &Config) -> String {
    text(&root::write(config))
}

/// The effective configuration as JSON, with the structure of the YAML.
pub fn to_json(config: &Config) -> serde_json::Value {
    serde_json::to_value(root::write(config)).expect("the keys are text or numbers, the numbers are finite")
}

fn text(tree: &Value) -> String {
    serde_yaml::to_string(tree).expect("a tree without tags can be written")
}
