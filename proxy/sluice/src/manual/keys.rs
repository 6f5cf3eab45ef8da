//! The commented configuration as a list of keys: path, default and description.
//!
//! `config/sluice.yaml` is the only place where keys are explained, and tests check that it is complete. It is parsed
//! by its layout: `key: value  # text`, whole lines after `# ` for keys at their defaults, and comments that continue
//! further to the right than any key starts.

/// The file that explains every key.
const DOCUMENT: &str = include_str!("../../../../config/sluice.yaml");

/// Keys start left of this column; continued text is to the right of it.
const TEXT_COLUMN: usize = 20;

/// Maps whose keys are names that the user chooses.
const NAMED: [&str; 3] = ["caches", "clusters", "rate_limits"];

/// One key.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Key {
    /// Dotted, as for `--set`; `[]` stands for an index, `NAME` for the name of a cluster or another name of
    /// the user's choice.
    pub(super) path: String,
    /// The value in the file; empty for a map or no value.
    pub(super) value: String,
    /// Whether the value is the default, or an example.
    pub(super) is_default: bool,
    /// The comments before and after it.
    pub(super) text: String,
}

/// All keys, in the order of the file.
pub(super) fn all() -> Vec<Key> {
    read(DOCUMENT)
}

/// The other place that explains a key which exists in two maps.
pub(super) fn elsewhere(path: &str) -> Option<String> {
    let limits = path.strip_prefix("listeners[].limits").map(|rest| format!("limits{rest}"));
    limits.or_else(|| path.strip_prefix("routes[].retry").map(|rest| format!("clusters.NAME.retry{rest}")))
}

/// A line: the column, and the text after indentation and comment sign.
struct Line<'t> {
    column: usize,
    text: &'t str,
    is_comment: bool,
}

impl<'t> Line<'t> {
    fn new(line: &'t str) -> Self {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        let Some(inside) = bare.strip_prefix('#') else {
            return Self { column: indent, text: bare, is_comment: false };
        };
        let inside = inside.strip_prefix(' ').unwrap_or(inside);
        let text = inside.trim_start();
        Self { column: indent + inside.len() - text.len(), text, is_comment: true }
    }

    /// The key and the text after its colon, if the line contains a key.
    fn key(&self) -> Option<(usize, bool, &'t str, &'t str)> {
        let (in_list, text) = match self.text.strip_prefix("- ") {
            Some(text) => (true, text),
            None => (false, self.text),
        };
        let column = self.column + if in_list { 2 } else { 0 };
        let (name, rest) = text.split_once(':')?;
        let plain = !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        let ends = rest.is_empty() || rest.starts_with(' ');
        (plain && ends && column < TEXT_COLUMN).then_some((column, in_list, name, rest))
    }
}

fn read(document: &str) -> Vec<Key> {
    let mut keys: Vec<Key> = Vec::new();
    let mut above: Vec<Level> = Vec::new();
    let mut preface = String::new();
    for line in document.lines() {
        let line = Line::new(line);
        if line.text.is_empty() {
            preface.clear();
        } else if keys.last().is_some_and(is_open) {
            // A continued list.
            if let Some(key) = keys.last_mut() {
                key.value = format!("{} {}", key.value, line.text);
            }
        } else if let Some((column, in_list, name, rest)) = line.key() {
            let (value, text) = rest.split_once(" #").unwrap_or((rest, ""));
            let path = path(&mut above, column, &line, in_list, name);
            let is_default = line.is_comment && !above.iter().any(|level| level.is_example);
            let text = joined(&std::mem::take(&mut preface), text);
            keys.push(Key { path, value: value.trim().to_owned(), is_default, text });
        } else {
            match keys.last_mut().filter(|_| line.column >= TEXT_COLUMN) {
                Some(key) => key.text = joined(&key.text, line.text),
                None => preface = joined(&preface, line.text),
            }
        }
    }
    keys
}

fn is_open(key: &Key) -> bool {
    key.value.starts_with('[') && !key.value.ends_with(']')
}

fn joined(one: &str, other: &str) -> String {
    format!("{} {}", one.trim(), other.trim()).trim().to_owned()
}

/// A key that contains others.
struct Level {
    column: usize,
    name: String,
    /// It shows entries of a list that is empty by default.
    is_example: bool,
}

/// The path of a key that starts at `column`, within the keys further left; updates `above`.
fn path(above: &mut Vec<Level>, column: usize, line: &Line<'_>, in_list: bool, name: &str) -> String {
    while above.last().is_some_and(|level| level.column >= column) {
        above.pop();
    }
    if let Some(parent) = above.last_mut()
        && in_list
        && !parent.name.ends_with("[]")
    {
        parent.name.push_str("[]");
        parent.is_example = line.is_comment;
    }
    let is_named = above.last().is_some_and(|parent| NAMED.contains(&parent.name.as_str()));
    let name = if is_named { "NAME" } else { name }.to_owned();
    above.push(Level { column, name, is_example: false });
    above.iter().map(|level| level.name.as_str()).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(path: &str, value: &str, is_default: bool, text: &str) -> Key {
        Key { path: path.to_owned(), value: value.to_owned(), is_default, text: text.to_owned() }
    }

    #[test]
    fn keys_are_parsed_by_layout() {
        let document = "\
# A file.
# As it stands, this starts.

# Bound addresses: 1 to 256.
listeners:
  - address: 127.0.0.1:80
    # protocol: http          # or tcp: bytes
                              # to one cluster
clusters:
  demo:
    # Servers:
    #   - a.b:3000            # a name
    endpoints: [\"a\"]
    # pool:                   # idle
    #   idle: 2
    # edits: []
    #   - name: x
# fields: [a,
#          b]
";
        let expected = [
            key("listeners", "", false, "Bound addresses: 1 to 256."),
            key("listeners[].address", "127.0.0.1:80", false, ""),
            key("listeners[].protocol", "http", true, "or tcp: bytes to one cluster"),
            key("clusters", "", false, ""),
            key("clusters.NAME", "", false, ""),
            key("clusters.NAME.endpoints", "[\"a\"]", false, "Servers: - a.b:3000            # a name"),
            key("clusters.NAME.pool", "", true, "idle"),
            key("clusters.NAME.pool.idle", "2", true, ""),
            key("clusters.NAME.edits", "[]", true, ""),
            key("clusters.NAME.edits[].name", "x", false, ""),
            key("fields", "[a, b]", true, ""),
        ];
        assert_eq!(read(document), expected);
    }

    #[test]
    fn every_number_of_the_configuration_is_listed() {
        let keys = all();
        for (map, numbers) in sluice_config::number_ranges() {
            for (name, _, _) in numbers {
                let path = if map.is_empty() { name.to_owned() } else { format!("{map}.{name}") };
                let place = elsewhere(&path).unwrap_or_else(|| path.clone());
                // The keys of an endpoint are shown next to the list.
                let is_known = keys.iter().any(|key| key.path == place) || map.ends_with("endpoints[]");
                assert!(is_known, "{path}");
            }
        }
    }

    #[test]
    fn no_path_is_listed_twice() {
        let mut paths: Vec<String> = all().into_iter().map(|key| key.path).collect();
        paths.sort();
        let count = paths.len();
        assert!(count > 100, "{count}");
        paths.dedup();
        assert_eq!(paths.len(), count);
    }
}
