//! Where a redirect may lead: its host is never a client's choice.

use super::Mistake;
use super::problem::quote;
use super::template::{Template, TemplatePart, Variable};
use super::text;

/// What a client has chosen, in the sketch of a location.
const CHOSEN: char = '\u{1}';
/// A query, which may be empty.
const QUERY: char = '\u{2}';

/// The Location of a redirect, with its placeholders.
pub(super) fn location(location: &str) -> text::Check {
    text::field_value(location)?;
    if location.contains(' ') {
        return Err(format!("{} has a space; write it as %20", quote(location)).into());
    }
    if location.starts_with("//") || location.starts_with("/\\") {
        return Err(format!(
            "{} begins with two slashes, which means another host; write the scheme as well",
            quote(location)
        )
        .into());
    }
    check(location)
}

/// Refuses variables that a client chooses where the scheme or the host of a location stands: with `@`, `:` or a dot they
/// would make another host.
///
/// # Errors
/// What is wrong, and what to write.
fn check(text: &str) -> Result<(), Mistake> {
    let sketch = sketch(&Template::read(text)?);
    let ends = |rest: &str| rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let first = &sketch[..ends(&sketch)];
    let from_client = || format!("{} takes its host from the client; write a host or {{host}}", quote(text));
    let Some((scheme, rest)) = first.strip_suffix(':').zip(sketch[first.len()..].strip_prefix("//")) else {
        let before = first.split([CHOSEN, QUERY]).next().unwrap_or_default();
        let has_variable = first.len() > before.len();
        // With these in front, a value could be the rest of another host.
        let is_open =
            ["", "http", "https", "http:", "https:"].iter().any(|start| before.eq_ignore_ascii_case(start));
        if first.starts_with("http:") || first.starts_with("https:") {
            return Err(format!("{} has no // behind its scheme; write https://", quote(text)).into());
        }
        return if has_variable && is_open { Err(from_client().into()) } else { Ok(()) };
    };
    let host = &rest[..ends(rest)];
    if scheme.contains([CHOSEN, QUERY]) || host.is_empty() || host.starts_with([CHOSEN, QUERY]) {
        return Err(from_client().into());
    }
    if host.contains(CHOSEN) {
        return Err(format!(
            "{} takes a part of its host from the client; write a / before the variable, or only {{host}}",
            quote(text)
        )
        .into());
    }
    Ok(())
}

/// The text with something in place of each variable that has the same meaning for where it leads.
fn sketch(template: &Template) -> String {
    let mut sketch = String::new();
    for part in &template.0 {
        match part {
            TemplatePart::Text(text) => sketch.push_str(text),
            TemplatePart::Variable(variable) => match variable {
                Variable::Scheme => sketch.push_str("https"),
                Variable::Host | Variable::ClientIp | Variable::Route => sketch.push('h'),
                // It may be empty.
                Variable::ClientPort => {}
                Variable::Path => sketch.push('/'),
                Variable::Query => sketch.push(QUERY),
                Variable::Method
                | Variable::RequestId
                | Variable::TlsVersion
                | Variable::TlsSni
                | Variable::AuthUser
                | Variable::ClientCertSubject
                | Variable::Header(_)
                | Variable::Cookie(_)
                | Variable::Group(_) => sketch.push(CHOSEN),
            },
        }
    }
    sketch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_field_without_blanks() {
        assert_eq!(location("https://{host}{path}{query}"), Ok(()));
        for bad in ["https://{hots}/", "a b", "a\n", "{", "{host", "//a/b", "/\\a"] {
            assert!(location(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_client_chooses_no_host() {
        for fine in [
            "/x",
            "/{group:1}",
            "{path}",
            "{path}{query}{header:x}",
            "x/{header:x}",
            "page-{group:1}",
            "https://a.example/{header:x}",
            "https://{host}{path}{query}",
            "https://{host}{query}",
            "https://{host}:8443{path}",
            "https://{host}:{client_port}/{group:1}",
            "{scheme}://{host}/{group:1}",
            "https://{route}.example.com/{cookie:x}",
            "https://a.example?x={header:a}",
            "https://a.example#{group:1}",
            "/login?next=https://{header:x-host}",
            "mailto:{group:1}",
        ] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
        for bad in [
            "{header:x}",
            "{group:1}",
            "{query}{group:1}",
            "{client_port}{group:1}",
            "{auth_user}/x",
            "{scheme}{group:1}",
            "{scheme}:{group:1}",
            "https:{path}",
            "http:{group:1}",
            "https:/{group:1}",
            "https://{path}",
            "https://{query}",
            "https://{header:x}/",
            "https://{tls_sni}/",
            "https://{host}{group:1}",
            "https://a.{cookie:x}/",
            "https://example.com{query}{header:x}",
            "{scheme}://a{group:1}",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
