//! `files`: the folder that a route responds from, and what is said of its files.

use std::path::PathBuf;

use super::codec::{File, Flag, List, Or, checked, keys, map, number, word};
use super::condition::checked_pattern;
use super::defaults::DAY_MS;
use super::names::words;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::text;

/// Maximum number of names that are tried for one request: each costs a look at the disk.
const TRIES_MAX: usize = 8;
/// Maximum number of rules on Cache-Control of one route.
const RULES_MAX: usize = 100;
/// Stands for the path of the request.
const PATH: &str = "{path}";

/// Files that a route responds with.
#[derive(Clone, Debug, PartialEq)]
pub struct Files {
    /// The folder. No name leads out of it, and no symbolic link.
    pub root: PathBuf,
    /// Names that are tried in order, below the folder; `{path}` stands for the path of the request.
    pub try_paths: Vec<String>,
    /// The file that stands for its folder; `None` if none does.
    pub index: Option<String>,
    /// Encodings in which files may lie beside them: `a.css.br` beside `a.css`. The first that the client takes.
    pub precompressed: Vec<ContentCoding>,
    /// Which Cache-Control files have; the first that fits applies.
    pub cache_control: Vec<CacheRule>,
    /// Whether a folder without an index is listed.
    pub listing: bool,
}

/// Which Cache-Control some files have.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheRule {
    /// An expression that is searched in the path of the request; `None` fits every path.
    pub path_regex: Option<String>,
    /// The value of the field.
    pub value: String,
}

/// A coding of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// Brotli.
    Brotli,
    /// Zstandard.
    Zstd,
    /// gzip.
    Gzip,
}

words!(ContentCoding {
    Brotli = "br",
    Zstd = "zstd",
    Gzip = "gzip",
});

/// What workers keep of files that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCache {
    /// Bytes of all workers together, for contents and for what is known of open files; 0 keeps nothing.
    pub memory_bytes_max: u64,
    /// The largest file whose content is kept, in bytes; of larger ones the open descriptor is kept.
    pub object_bytes_max: u64,
    /// How long a file is served before it is looked at again, in milliseconds.
    pub recheck_ms: u64,
}

keys! { Files, settle distinct {
    try_paths: vec![PATH.to_owned()], List(TRIES_MAX, checked(tried_path));
    index: Some("index.html".to_owned()), Or("off", checked(file_name));
    precompressed: Vec::new(), List(ContentCoding::COUNT, word());
    cache_control: Vec::new(), List(RULES_MAX, map());
    listing: false, Flag;
} required {
    root: PathBuf::new(), "the path of a folder", File;
}}

keys! { CacheRule {
    path_regex: None, super::codec::Optional(checked(checked_pattern));
} required {
    value: String::new(), "a value such as public, max-age=3600", checked(text::field_value);
}}

keys! { FileCache {
    // The scripts, styles and icons of a site, with room for those of others.
    memory_bytes_max: 64 << 20, number(0..=1 << 40);
    // Beyond it, sending from the kernel's pages is faster than from ours.
    object_bytes_max: 32 << 10, number(0..=16 << 20);
    // A deployment is seen at once, and a file that thousands ask for is looked at once.
    recheck_ms: 1000, number(0..=DAY_MS);
}}

impl ContentCoding {
    const COUNT: usize = 3;
}

fn tried_path(text: &str) -> text::Check {
    if !text.starts_with('/') && !text.starts_with(PATH) {
        return Err(
            format!("{} does not begin with / or {PATH}; write one of them first", quote(text)).into()
        );
    }
    let rest = text.replacen(PATH, "/x", 1);
    if rest.contains(['{', '}']) {
        return Err(format!("{} has another variable than one {PATH}; remove it", quote(text)).into());
    }
    if rest.contains(|c: char| c.is_control()) {
        return Err(format!("{} has a control character; remove it", quote(text)).into());
    }
    if rest.split('/').skip(1).any(|segment| segment.starts_with('.')) {
        return Err(format!("{} has a dot segment or a hidden name; write another name", quote(text)).into());
    }
    Ok(())
}

fn file_name(text: &str) -> text::Check {
    if text.is_empty() || text.contains('/') || text.starts_with('.') {
        let message =
            format!("{} is not the name of a visible file; write one such as index.html", quote(text));
        return Err(message.into());
    }
    Ok(())
}

fn distinct(files: &mut Files, fields: &mut Fields<'_>) {
    let mut seen = Vec::new();
    for (at, coding) in files.precompressed.iter().enumerate() {
        if seen.contains(coding) {
            let path = fields.path.key("precompressed").index(at);
            fields.problems.add(&path, format!("{coding} is listed before; remove one"));
        }
        seen.push(*coding);
    }
    let is_empty = |item: Item<'_>| item.value.as_sequence().is_some_and(Vec::is_empty);
    if fields.get("try_paths").is_some_and(is_empty) {
        let path = fields.path.key("try_paths");
        fields.problems.add(&path, "the list is empty; write names, or remove it for {path}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tried_paths_are_names_below_the_folder() {
        for good in
            ["{path}", "{path}.html", "{path}/index.html", "/app.html", "/a b%.html", "/cache{path}.html"]
        {
            assert_eq!(tried_path(good), Ok(()), "{good}");
        }
        for bad in ["", "app.html", "{query}", "{path}{path}", "/../x", "{path}/../x", "{path}/.env", "/a\n"]
        {
            assert!(tried_path(bad).is_err(), "{bad}");
        }
        assert!(file_name("index.html").is_ok());
        assert!([".htaccess", "a/b", ""].iter().all(|bad| file_name(bad).is_err()));
    }
}
