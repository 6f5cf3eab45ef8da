//! How a value from a request is written into a body that sluice sends.

use sluice_core::html::escape_html;

/// Kinds of body in which a value could be taken for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyKind {
    /// HTML, XML, SVG.
    Markup,
    /// JSON; the variable stands within quotes.
    Json,
    /// Anything else.
    Plain,
}

impl BodyKind {
    /// The kind of a Content-Type.
    pub(crate) fn of(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let is =
            |kind: &str| essence.ends_with(&format!("/{kind}")) || essence.ends_with(&format!("+{kind}"));
        match () {
            () if is("html") || is("xml") => Self::Markup,
            () if is("json") || is("x-ndjson") || is("jsonl") => Self::Json,
            () => Self::Plain,
        }
    }

    /// Appends a value. Bytes that are not UTF-8 become U+FFFD where the kind has characters.
    pub(crate) fn push(self, value: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Markup => out.extend(escape_html(&String::from_utf8_lossy(value)).as_bytes()),
            Self::Json => {
                let quoted = serde_json::Value::from(String::from_utf8_lossy(value)).to_string();
                // Without its quotes.
                out.extend_from_slice(&quoted.as_bytes()[1..quoted.len() - 1]);
            }
            Self::Plain => out.extend_from_slice(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_values() {
        for (content_type, value, wanted) in [
            ("text/html; charset=utf-8", "<b>&\"", "&lt;b&gt;&amp;&#34;"),
            ("Application/XHTML+XML", "<", "&lt;"),
            ("image/svg+xml", "<", "&lt;"),
            ("application/json", "a\"b\\\n", "a\\\"b\\\\\\n"),
            ("application/problem+json", "\"", "\\\""),
            ("text/plain", "<\"", "<\""),
        ] {
            let mut out = Vec::new();
            BodyKind::of(content_type).push(value.as_bytes(), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), wanted, "{content_type}");
        }
    }
}
