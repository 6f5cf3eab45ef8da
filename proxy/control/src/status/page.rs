//! The page at `/status`: one embedded file that loads only `/events` of the same listener.

use std::sync::LazyLock;

use data_encoding::BASE64;
use sha2::{Digest, Sha256};

/// The page.
pub static HTML: &str = include_str!("page.html");

/// Its Content-Security-Policy: allows only its script and its style sheet, by their hashes.
pub static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |tag: &str| BASE64.encode(&Sha256::digest(content(tag).as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style"),
    )
});

/// The content of the first `<tag>`.
fn content(tag: &str) -> &'static str {
    let (_, rest) = HTML.split_once(&format!("<{tag}>")).expect("the page has the tag; a test checks this");
    rest.split_once(&format!("</{tag}>")).expect("the page has the tag; a test checks this").0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_script_one_style_sheet_and_no_external_resources() {
        for tag in ["<script", "</script>", "<style", "</style>"] {
            assert_eq!(HTML.matches(tag).count(), 1, "{tag}");
        }
        // With a policy of hashes, code or style in attributes would be ignored.
        for attribute in [" style=", " onclick=", " onload=", "src=", "@import", "url("] {
            assert!(!HTML.contains(attribute), "{attribute}");
        }
        let addresses = HTML.matches("://").count();
        let namespace = HTML.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(addresses, namespace, "the only address is the SVG namespace");
    }

    #[test]
    fn the_policy_lists_script_and_style_by_hash() {
        assert!(POLICY.contains("script-src 'sha256-"));
        assert_eq!(POLICY.matches('=').count(), 2, "32 bytes end so in base64: {}", *POLICY);
        assert!(!POLICY.contains("unsafe"));
    }
}
