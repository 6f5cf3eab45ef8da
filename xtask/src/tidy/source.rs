//! Rust source with everything that is not code blanked out, so that plain searches work. Not a parser.

use std::ops::Range;

/// One Rust file, in three views with the same length and the same line breaks.
pub(super) struct Source<'a> {
    /// Path from the root.
    pub(super) path: &'a str,
    /// The text as it is.
    pub(super) text: &'a str,
    /// Comments, strings and characters blanked.
    pub(super) code: String,
    /// Like `code`, with every `#[cfg(test)]` item blanked too.
    pub(super) production: String,
}

impl<'a> Source<'a> {
    /// Creates the views.
    pub(super) fn new(path: &'a str, text: &'a str) -> Self {
        let code = blank_non_code(text);
        let tests = test_items(&code);
        let mut bytes = code.clone().into_bytes();
        for range in &tests {
            blank(&mut bytes, range.clone());
        }
        // Only whole items between ASCII characters are blanked, with ASCII.
        let production = String::from_utf8_lossy(&bytes).into_owned();
        Self { path, text, code, production }
    }

    /// Whether the whole file is tests.
    pub(super) fn is_tests(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }
}

/// The line of a byte offset, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The offset after the bracket that closes the one at `open`.
pub(super) fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// Offsets at which `word` is a whole word, not part of an identifier.
pub(super) fn words<'c>(code: &'c str, word: &'c str) -> impl Iterator<Item = usize> + 'c {
    let inside = |byte: Option<&u8>| byte.is_some_and(|&b| b.is_ascii_alphanumeric() || b == b'_');
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let bytes = code.as_bytes();
        !inside(at.checked_sub(1).and_then(|before| bytes.get(before))) && !inside(bytes.get(at + word.len()))
    })
}

/// The end of an item whose text starts at `from`: after its block or its semicolon.
pub(super) fn item_end(code: &str, from: usize) -> (usize, Option<usize>) {
    let mut at = from;
    while let Some(byte) = code.as_bytes().get(at) {
        match byte {
            b'(' | b'[' => at = closing(code, at),
            b'{' => return (closing(code, at), Some(at)),
            b';' => return (at + 1, None),
            _ => at += 1,
        }
    }
    (code.len(), None)
}

fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let attributes = code.match_indices("#[cfg(test").chain(code.match_indices("#[cfg(all(test"));
    for (start, _) in attributes {
        if found.iter().any(|range| range.contains(&start)) {
            continue;
        }
        let (end, _) = item_end(code, start + 1);
        found.push(start..end);
    }
    found.sort_by_key(|range| range.start);
    found
}

fn blank(bytes: &mut [u8], range: Range<usize>) {
    for byte in &mut bytes[range] {
        if *byte != b'\n' {
            *byte = b' ';
        }
    }
}

fn blank_non_code(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut at = 0;
    while at < bytes.len() {
        match skipped(&text.as_bytes()[at..], at.checked_sub(1).map(|i| bytes[i])) {
            Some(length) => {
                blank(&mut bytes, at..at + length);
                at += length;
            }
            None => at += 1,
        }
    }
    // Blanked parts start and end at ASCII bytes, so the rest is still UTF-8.
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The length of the comment, string or character at the start of `rest`.
fn skipped(rest: &[u8], before: Option<u8>) -> Option<usize> {
    let find = |needle: &[u8], from: usize| {
        rest.get(from..)
            .and_then(|tail| tail.windows(needle.len()).position(|w| w == needle))
            .map_or(rest.len(), |at| from + at + needle.len())
    };
    let in_word = before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    match rest {
        [b'/', b'/', ..] => Some(find(b"\n", 0).min(rest.len())),
        [b'/', b'*', ..] => Some(block_comment(rest)),
        [b'"', ..] => Some(quoted(rest)),
        [b'r', b'"' | b'#', ..] if !in_word || before == Some(b'b') => {
            let hashes = rest[1..].iter().take_while(|&&b| b == b'#').count();
            if rest.get(1 + hashes) != Some(&b'"') {
                return None;
            }
            let end = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            Some(find(&end, hashes + 2))
        }
        [b'\'', b'\\', ..] => Some(find(b"'", 3)),
        // A lifetime or a label is not closed by a quote one character later.
        [b'\'', ..] => {
            let width = std::str::from_utf8(&rest[1..rest.len().min(5)])
                .or_else(|e| std::str::from_utf8(&rest[1..=e.valid_up_to()]))
                .ok()
                .and_then(|s| s.chars().next())
                .map_or(1, char::len_utf8);
            (rest.get(1 + width) == Some(&b'\'')).then_some(width + 2)
        }
        _ => None,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        match rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn comments_and_strings_are_blanked() {
        let text = "let a = \"{ \\\" unsafe\"; // unsafe {\nlet b = '{'; let c: &'static str = r#\"}\"#; /* { /* } */ */ b'\\''";
        let source = Source::new("x.rs", text);
        assert_eq!(source.code.len(), text.len());
        assert!(!source.code.contains(['{', '}']), "{}", source.code);
        assert!(!source.code.contains("unsafe"));
        assert!(source.code.contains("&'static str"));
    }

    #[test]
    fn multibyte_characters_are_skipped() {
        let source = Source::new("x.rs", "let a = 'é'; let b = '→'; fn f() {}");
        assert!(source.code.ends_with("fn f() {}"));
        assert!(!source.code.contains('\''));
    }

    #[test]
    fn test_items_are_not_production() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests;\nfn b() {}\n#[cfg(test)]\n#[allow(x)]\nmod more {\n    fn c() {}\n}\n";
        let source = Source::new("x.rs", text);
        assert!(source.production.contains("fn b()"));
        assert!(!source.production.contains("fn c()"));
    }

    #[test]
    fn only_whole_words_are_found() {
        let found: Vec<usize> = words("unsafe_code unsafe { not_unsafe }", "unsafe").collect();
        assert_eq!(found, [12]);
    }
}
