//! Cases that once found a fault, or nearly did. They are stored as bytes, because a seed has another meaning after any
//! change of the grammar.

use anyhow::{Context, Result};

use super::report::unescaped;

/// A stored case.
pub(super) struct Find {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// The stored requests.
///
/// # Errors
/// When a line is malformed.
pub(super) fn requests() -> Result<Vec<Find>> {
    parse(include_str!("../../differential/requests.txt"))
}

/// The stored responses.
///
/// # Errors
/// When a line is malformed.
pub(super) fn responses() -> Result<Vec<Find>> {
    parse(include_str!("../../differential/responses.txt"))
}

/// `NAME: BYTES` per line, bytes with escapes; `#` starts a comment.
fn parse(text: &str) -> Result<Vec<Find>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, bytes) = line.split_once(": ").with_context(|| format!("no `NAME: BYTES`: {line}"))?;
            let bytes = unescaped(bytes).with_context(|| format!("malformed escape: {line}"))?;
            Ok(Find { name: name.to_owned(), bytes })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_find_can_be_read() {
        assert!(!requests().unwrap().is_empty());
        assert!(!responses().unwrap().is_empty());
    }
}
