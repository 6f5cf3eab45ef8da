//! `cors`: scripts of which sites may use a route from a browser (the Fetch standard, section 3.2).

use super::codec::{Flag, List, Own, checked, keys, number};
use super::problem::quote;
use super::reader::Fields;
use super::shape::Shape;
use super::text;

/// Maximum number of items of one list.
const ITEMS_MAX: usize = 1000;

/// What browsers are told.
#[derive(Clone, Debug, PartialEq)]
pub struct Cors {
    /// Sites whose scripts may read responses, in lower case: `https://a.example`, `https://*.a.example`, or `*` for
    /// any.
    pub origins: Vec<String>,
    /// Methods that their scripts may use.
    pub methods: Vec<String>,
    /// Fields of requests that they may set; `*` is any.
    pub headers: Vec<String>,
    /// Fields of responses that they may read, in addition to the usual ones.
    pub expose: Vec<String>,
    /// Whether cookies and passwords go along.
    pub credentials: bool,
    /// How long browsers remember the answer to a preflight, in seconds.
    pub max_age_s: u64,
}

keys! { Cors, settle consistent {
    methods: ["GET", "HEAD", "POST"].map(str::to_owned).to_vec(), List(ITEMS_MAX, checked(text::method));
    headers: Vec::new(), List(ITEMS_MAX, checked(text::field_name));
    expose: Vec::new(), List(ITEMS_MAX, checked(text::field_name));
    credentials: false, Flag;
    // Browsers keep it for two hours at most; a mistake in a list is mended sooner this way.
    max_age_s: 600, number(0..=86_400);
} required {
    origins: Vec::new(), "sites such as https://app.example.com", List(ITEMS_MAX, ORIGIN);
}}

const ORIGIN: Own<String> = Own {
    read: |item| {
        let text = item.text()?.to_ascii_lowercase();
        let is_fit = is_origin(&text);
        if !is_fit {
            item.mistake(format!(
                "{} is not an origin; write https://host, https://*.host, with a port if it is not the usual one, or \"*\"",
                quote(&text)
            ));
        }
        is_fit.then_some(text)
    },
    write: |origin| origin.as_str().into(),
    shape: || Shape::Matching("^(\\*|[A-Za-z][A-Za-z0-9+.-]*://[^/]+)$"),
};

/// Whether a text is what browsers send in Origin, perhaps with a wildcard in front of its host. `null` is not: every
/// sandboxed frame has it, whoever it is of.
fn is_origin(text: &str) -> bool {
    if text == "*" {
        return true;
    }
    let Some((scheme, host)) = text.split_once("://") else { return false };
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte));
    let host = host.strip_prefix("*.").unwrap_or(host);
    let is_host = !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte));
    // Browsers leave the usual port out.
    let has_usual_port =
        (scheme == "https" && host.ends_with(":443")) || (scheme == "http" && host.ends_with(":80"));
    is_scheme && is_host && !has_usual_port
}

fn consistent(cors: &mut Cors, fields: &mut Fields<'_>) {
    let is_any = cors.origins.iter().any(|origin| origin == "*");
    if is_any && cors.credentials {
        let message =
            "any site could then act for whoever is logged in; name the origins, or remove credentials";
        fields.problems.add(&fields.path.key("credentials"), message);
    }
    if fields.get("origins").is_some_and(|item| item.value.as_sequence().is_some_and(Vec::is_empty)) {
        fields.problems.add(&fields.path.key("origins"), "the list is empty; write sites, or remove cors");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_what_browsers_send() {
        for good in [
            "*",
            "https://a.example",
            "http://localhost:3000",
            "https://*.a.example",
            "capacitor://localhost",
        ] {
            assert!(is_origin(good), "{good}");
        }
        for bad in [
            "null",
            "a.example",
            "https://",
            "https://a.example/",
            "https://a.example:443",
            "https://*",
            "://a",
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }
}
