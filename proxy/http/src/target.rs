//! The forms of a request target (RFC 9112 section 3.2), and the authority and path in each.

use super::authority::is_authority;
use super::method::Method;

/// A parsed target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// origin-form: a path and an optional query.
    Origin,
    /// absolute-form: its authority, and its path and query, where the path may be missing.
    Absolute { authority: &'a [u8], path_and_query: &'a [u8] },
    /// authority-form; only for CONNECT.
    Authority,
    /// asterisk-form; only for OPTIONS.
    Asterisk,
}

/// Parses `target`. Returns `None` if it has no form that `method` may have.
///
/// Any printable ASCII byte except `#` may occur in it: clients send more than RFC 3986 lists (`|`, `"`, `^`), and a
/// fragment would make the next recipient see a shorter path.
pub(crate) fn read_target(target: &[u8], method: Method) -> Option<Target<'_>> {
    if target.iter().any(|&byte| !byte.is_ascii_graphic() || byte == b'#') {
        return None;
    }
    match (method, target) {
        (Method::Connect, _) => is_authority(target).then_some(Target::Authority),
        (_, [b'/', ..]) => Some(Target::Origin),
        (Method::Options, b"*") => Some(Target::Asterisk),
        _ => read_absolute(target),
    }
}

fn read_absolute(target: &[u8]) -> Option<Target<'_>> {
    let rest = strip_scheme(target, b"http://").or_else(|| strip_scheme(target, b"https://"))?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path_and_query) = rest.split_at(end);
    is_authority(authority).then_some(Target::Absolute { authority, path_and_query })
}

fn strip_scheme<'a>(target: &'a [u8], scheme: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = target.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}
