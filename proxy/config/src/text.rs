//! Checks of one piece of text: names, hosts, tokens, field values, paths.
//!
//! Each check returns what is wrong and what to write; each looks only at its text.

use super::problem::quote;
use crate::Mistake;

/// Maximum bytes of a name. A listener may be named after its address, and the longest address text is 253 + 1 + 5.
pub(super) const NAME_BYTES_MAX: usize = 260;

/// Maximum bytes of a host name (RFC 1035 3.1, as text).
const HOST_BYTES_MAX: usize = 253;

/// Fields that frame messages or name the connection; editing them would undo what sluice enforces.
const FRAMING_FIELDS: &[&str] = &[
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The result of a check: what is wrong, if anything.
pub(super) type Check = Result<(), Mistake>;

/// A listener, route or cluster name.
pub(super) fn name(text: &str) -> Check {
    if text.len() > NAME_BYTES_MAX {
        return Err(
            format!("{} is too long; write a name of at most {NAME_BYTES_MAX} bytes", quote(text)).into()
        );
    }
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(format!("{} is not a name; write visible characters", quote(text)).into());
    }
    Ok(())
}

/// RFC 9110 5.6.2: a token.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// A field or cookie name.
pub(super) fn field_name(text: &str) -> Check {
    if is_token(text) {
        return Ok(());
    }
    Err(format!("{} is not a field name; write letters, digits and hyphens", quote(text)).into())
}

/// The name of a field that a route edits.
pub(super) fn edited_field_name(text: &str, request: bool) -> Check {
    field_name(text)?;
    let lower = text.to_ascii_lowercase();
    if lower == "host" && request {
        return Err(format!("{} cannot be changed here; write host_rewrite", quote(text)).into());
    }
    if FRAMING_FIELDS.contains(&lower.as_str()) {
        return Err(
            format!("{} cannot be changed: sluice frames messages itself; remove it", quote(text)).into()
        );
    }
    Ok(())
}

/// RFC 9110 5.5: a field value, without the obsolete bytes beyond ASCII and without leading or trailing whitespace.
pub(super) fn field_value(text: &str) -> Check {
    if !text.bytes().all(|b| b == b'\t' || (b' '..=b'~').contains(&b)) {
        return Err(format!("{} has a control or non-ASCII character; remove it", quote(text)).into());
    }
    if text.trim() != text {
        return Err(format!("{} begins or ends with whitespace; remove it", quote(text)).into());
    }
    Ok(())
}

/// A method. Methods are case-sensitive (RFC 9110 9.1), and all registered ones are in capitals.
pub(super) fn method(text: &str) -> Check {
    if !is_token(text) {
        return Err(format!("{} is not a method; write a name such as GET", quote(text)).into());
    }
    if text.bytes().any(|b| b.is_ascii_lowercase()) {
        return Err(
            format!("{} would match no request; write {}", quote(text), text.to_ascii_uppercase()).into()
        );
    }
    Ok(())
}

/// Labels of letters, digits, hyphens and underscores, separated by dots.
pub(super) fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    text.len() <= HOST_BYTES_MAX && text.split('.').all(label)
}

/// A host as in a Host field, without the port.
fn is_host(text: &str) -> bool {
    let bracketed = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match bracketed {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_host_name(text),
    }
}

/// A host that a route matches: exact or `*.suffix`.
pub(super) fn host_pattern(text: &str) -> Check {
    if text == "*" {
        return Err("\"*\" is not a host; leave hosts out to match any".into());
    }
    if !text.is_ascii() {
        return Err(format!("{} is not ASCII; write the host in punycode (xn--…)", quote(text)).into());
    }
    let bare = text.strip_prefix("*.").unwrap_or(text);
    if is_host(bare) {
        return Ok(());
    }
    if bare.contains('*') {
        return Err(
            format!("{} has a * that is not the first label; write *.example.com", quote(text)).into()
        );
    }
    if bare.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok()) {
        return Err(format!("{} has a port; hosts match without it, remove it", quote(text)).into());
    }
    Err(format!("{} is not a host; write example.com or *.example.com", quote(text)).into())
}

/// A Host field that sluice sends: a host with or without a port.
pub(super) fn host_value(text: &str) -> Check {
    let with_port =
        text.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok());
    if is_host(text) || with_port {
        return Ok(());
    }
    Err(format!("{} is not a host; write example.com or example.com:8080", quote(text)).into())
}

/// A path that requests are compared with, or that sluice requests.
pub(super) fn url_path(text: &str, query: bool) -> Check {
    if !text.starts_with('/') {
        return Err(format!(
            "{} does not begin with /; write /{}",
            quote(text),
            text.trim_start_matches('*')
        )
        .into());
    }
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(
            format!("{} has a space, control or non-ASCII character; write it as %XX", quote(text)).into()
        );
    }
    if text.contains('#') || (!query && text.contains('?')) {
        return Err(format!("{} has a query or fragment; remove it", quote(text)).into());
    }
    Ok(())
}

/// A path without dot segments, encoded or not.
pub(super) fn without_dots(text: &str) -> Check {
    let path = text.split('?').next().unwrap_or_default().to_ascii_lowercase().replace("%2e", ".");
    match path.split(['/', '\\']).any(|segment| matches!(segment, "." | "..")) {
        true => Err(format!("{} has a dot segment; write the path that it means", quote(text)).into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for good in ["example.com", "*.example.com", "a_b", "127.0.0.1", "[::1]", "xn--bcher-kva.example"] {
            assert_eq!(host_pattern(good), Ok(()), "{good}");
        }
        for bad in
            ["", "*", "a.*.com", "*a.com", "a..b", "bücher.example", "example.com:80", "a b", "example.com."]
        {
            assert!(host_pattern(bad).is_err(), "{bad}");
        }
        assert_eq!(host_value("a.b:80"), Ok(()));
        assert!(host_value("a.b:x").is_err() && host_value("a/b").is_err() && host_value("").is_err());
    }

    #[test]
    fn fields() {
        assert_eq!(edited_field_name("X-App", true), Ok(()));
        assert!(
            edited_field_name("Host", true)
                .is_err_and(|message| message.to_string().contains("host_rewrite"))
        );
        for name in ["Content-Length", "transfer-encoding", "Connection", "UPGRADE", "te", "a b", "", "a:"] {
            assert!(edited_field_name(name, false).is_err(), "{name}");
        }
        for value in ["", "a b", "\"q\"; v=1"] {
            assert_eq!(field_value(value), Ok(()), "{value}");
        }
        for value in ["a\r\nb", "a\0", "é", " a", "a\t", "\u{7f}"] {
            assert!(field_value(value).is_err(), "{value:?}");
        }
    }

    #[test]
    fn paths_and_methods() {
        for (path, query, good) in [
            ("/", false, true),
            ("/a?b", true, true),
            ("/a?b", false, false),
            ("a", false, false),
            ("/a b", true, false),
        ] {
            assert_eq!(url_path(path, query).is_ok(), good, "{path}");
        }
        assert!(
            method("PURGE").is_ok()
                && method("get").is_err_and(|m| m.to_string().contains("write GET"))
                && method("").is_err()
        );
    }

    #[test]
    fn names() {
        assert!(name(&"a".repeat(NAME_BYTES_MAX)).is_ok());
        assert!(name(&"a".repeat(NAME_BYTES_MAX + 1)).is_err());
        assert!(name("").is_err() && name("a\nb").is_err());
    }
}
