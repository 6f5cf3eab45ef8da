//! Formats text for the man macros.

use super::{DATE, SOURCE};

/// Escapes text so that nothing in it is a request or an escape.
pub(super) fn text(plain: &str) -> String {
    let mut out = String::with_capacity(plain.len());
    for (index, c) in plain.chars().enumerate() {
        match c {
            '\\' => out.push_str("\\e"),
            // A bare one may be typeset as a hyphen, which cannot be pasted into a shell.
            '-' => out.push_str("\\-"),
            '…' => out.push_str("..."),
            '.' | '\'' if index == 0 => {
                out.push_str("\\&");
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

/// The first line of a page.
pub(super) fn title(name: &str, section: u8) -> String {
    format!(".TH {} {section} {DATE} \"{SOURCE}\" sluice\n", text(name))
}

/// A section and the lines in it.
pub(super) fn section(name: &str, lines: &str) -> String {
    format!(".SH {name}\n{lines}")
}

/// A list: each term in bold, with its meaning.
pub(super) fn list<'t>(entries: impl IntoIterator<Item = (&'t str, &'t str)>) -> String {
    let entry = |(word, means): (&str, &str)| format!(".TP\n\\fB{}\\fR\n{}\n", text(word), text(means));
    entries.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_a_request() {
        assert_eq!(text(".so /etc/passwd"), "\\&.so /etc/passwd");
        assert_eq!(text("a\\b --c'd"), "a\\eb \\-\\-c'd");
        assert_eq!(list([("-a", "'x")]), ".TP\n\\fB\\-a\\fR\n\\&'x\n");
    }
}
