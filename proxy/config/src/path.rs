//! The position of a value in the configuration: `clusters.api.endpoints[1]`. Not a file path.

use crate::Mistake;
use std::fmt;
use std::str::FromStr;

/// One step of a [`Path`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Segment {
    Key(String),
    Index(usize),
}

/// The steps from the root of the document to one value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Path(pub(super) Vec<Segment>);

impl Path {
    pub(super) fn root() -> Self {
        Self::default()
    }

    pub(super) fn key(&self, key: &str) -> Self {
        self.with(Segment::Key(key.to_owned()))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    pub(super) fn with(&self, segment: Segment) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment);
        Self(segments)
    }

    /// Whether this is `other` or lies below it.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && !key.contains(|c: char| ".[]=\"".contains(c) || c.is_control() || c.is_whitespace())
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) => {
                    let dot = if at == 0 { "" } else { "." };
                    if is_plain(key) {
                        write!(f, "{dot}{key}")?;
                    } else {
                        write!(f, "{dot}{key:?}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl FromStr for Path {
    type Err = Mistake;

    /// Parses `a.b[0]."c.d"`. `a.0` is the key `0`; in a list it is used as an index.
    fn from_str(text: &str) -> Result<Self, Mistake> {
        let mut segments = Vec::new();
        let mut rest = text;
        loop {
            let (segment, after) = first_segment(rest).ok_or_else(|| {
                format!("{text:?} is not a path; write keys with dots between, such as limits.headers_max")
            })?;
            segments.push(segment);
            rest = match after {
                "" => return Ok(Self(segments)),
                _ if after.starts_with('[') => after,
                _ => after
                    .strip_prefix('.')
                    .ok_or_else(|| format!("{text:?} is not a path; write a dot before {after:?}"))?,
            };
        }
    }
}

fn first_segment(text: &str) -> Option<(Segment, &str)> {
    if let Some(inner) = text.strip_prefix('[') {
        let (index, after) = inner.split_once(']')?;
        return Some((Segment::Index(index.parse().ok()?), after));
    }
    if let Some(inner) = text.strip_prefix('"') {
        let (key, after) = inner.split_once('"')?;
        return Some((Segment::Key(key.to_owned()), after));
    }
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let (key, after) = text.split_at(end);
    (!key.is_empty()).then(|| (Segment::Key(key.to_owned()), after))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paths_round_trip() {
        for text in ["a", "a.b", "a[0].b", "listeners.\"127.0.0.1:80\".name", "a[0][12]"] {
            assert_eq!(text.parse::<Path>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn invalid_paths_are_refused() {
        for text in ["", ".", "a.", ".a", "a..b", "a[", "a[x]", "a[0]b", "\"a", "\"a\"b"] {
            assert!(text.parse::<Path>().is_err(), "{text}");
        }
    }
}
