//! The page at `/status`: one file, embedded, that loads nothing but `/events` of the same listener.

use std::sync::LazyLock;

use data_encoding::BASE64;
use sha2::{Digest, Sha256};

/// The page.
pub static HTML: &str = include_str!("page.html");

/// Its Content-Security-Policy: its one script and its one style sheet, named by their hashes, and nothing else.
pub static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |tag: &str| BASE64.encode(&Sha256::digest(content(tag).as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style"),
    )
});

/// What is between the first `<tag>` and its end.
fn content(tag: &str) -> &'static str {
    let (_, rest) = HTML.split_once(&format!("<{tag}>")).expect("the page has one; a test looks");
    rest.split_once(&format!("</{tag}>")).expect("the page has one; a test looks").0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_one_script_and_one_style_sheet_and_nothing_from_elsewhere() {
        for tag in ["<script", "</script>", "<style", "</style>"] {
            assert_eq!(HTML.matches(tag).count(), 1, "{tag}");
        }
        // By a policy of hashes, attributes with code or style in them would not count.
        for attribute in [" style=", " onclick=", " onload=", "src=", "@import", "url("] {
            assert!(!HTML.contains(attribute), "{attribute}");
        }
        let addresses = HTML.matches("://").count();
        let namespace = HTML.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(addresses, namespace, "the only address is the name of SVG");
    }

    #[test]
    fn the_policy_names_what_it_has_by_hash() {
        assert!(POLICY.contains("script-src 'sha256-"));
        assert_eq!(POLICY.matches('=').count(), 2, "32 bytes end so in base64: {}", *POLICY);
        assert!(!POLICY.contains("unsafe"));
    }
}
