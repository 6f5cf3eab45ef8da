//! Paths for routing: the normal form of any spelling, and removal of a route's prefix.
//!
//! The forwarded path stays as the client sent it.

use std::borrow::Cow;

/// The path that routes are matched against: percent-encoded bytes decoded, except `%25`; runs of slashes merged; dot
/// segments resolved (RFC 3986 6.2.2).
///
/// An origin may serve `/%61dmin`, `//admin`, `/x/../admin` or `/admin%2fx` in the same way as `/admin`, so a rule for
/// `/admin` must apply to all of them. Parameters (`/admin;x`), case and backslashes are kept: a prefix does not match
/// them.
pub fn normalised(path: &[u8]) -> Cow<'_, [u8]> {
    if is_normal(path) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(normalise(path).into_iter().map(|(byte, _)| byte).collect())
}

/// The target with `prefix` removed from its path; always starts with `/` and keeps the query.
///
/// `prefix` belongs to a route that [`super::Router::find`] has matched. The rest after it stays as sent. Not for the
/// asterisk form (RFC 9112 3.2.4).
pub fn strip_prefix<'p>(prefix: &str, path_and_query: &'p [u8]) -> Cow<'p, [u8]> {
    let query_at = memchr::memchr(b'?', path_and_query).unwrap_or(path_and_query.len());
    let path = &path_and_query[..query_at];
    let prefix = normalised(prefix.as_bytes());
    // Without its last slash, the prefix leaves the rest the slash that it has to start with.
    let prefix = prefix.strip_suffix(b"/").unwrap_or(&prefix);
    if is_normal(path) {
        let skipped = path.strip_prefix(prefix).map_or(0, |_| prefix.len());
        return slash_first(&path_and_query[skipped..]);
    }
    let normal = normalise(path);
    let bytes = normal.iter().map(|(byte, _)| byte);
    if normal.len() < prefix.len() || !bytes.zip(prefix).all(|(byte, wanted)| byte == wanted) {
        return slash_first(path_and_query);
    }
    // Everything that was merged into the prefix, such as `..`, is before the end of its last byte.
    let taken = prefix.len().checked_sub(1).and_then(|last| normal.get(last));
    let rest = taken.map_or(0, |(_, end)| *end);
    slash_first(&path_and_query[rest..])
}

/// The target without dot segments in any spelling. The rest stays as sent, unless there are some: then the path is
/// sent in its normal form.
///
/// Behind a prefix that is put in front of it, `/../x` would leave that prefix again.
pub fn without_dot_segments(path_and_query: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let query_at = memchr::memchr(b'?', &path_and_query).unwrap_or(path_and_query.len());
    let (path, query) = path_and_query.split_at(query_at);
    if is_normal(path) || !has_dot_segments(path) {
        return path_and_query;
    }
    let mut target = Vec::with_capacity(path_and_query.len());
    encode_path(&normalised(path), &mut target);
    target.extend_from_slice(query);
    Cow::Owned(target)
}

/// Whether a segment is `.` or `..`, encoded or not.
/// A path in its normal form as it is sent.
pub fn encoded_path(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    encode_path(path, &mut out);
    out
}

pub(super) fn has_dot_segments(path: &[u8]) -> bool {
    let decoded: Vec<u8> = decode(path).into_iter().map(|(byte, _)| byte).collect();
    decoded.split(|byte| *byte == b'/').any(|segment| matches!(segment, b"." | b".."))
}

/// Adds a path in its normal form, encoded where a target does not take it as it is (RFC 3986 3.3).
pub(super) fn encode_path(path: &[u8], out: &mut Vec<u8>) {
    encode(path, |byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte), out);
}

/// Adds bytes, encoded unless they are plain. An encoded byte stays as it is.
pub(super) fn encode(bytes: &[u8], is_plain: fn(u8) -> bool, out: &mut Vec<u8>) {
    for (at, &byte) in bytes.iter().enumerate() {
        let is_encoded = byte == b'%'
            && matches!(bytes[at + 1..], [high, low, ..] if digit(high).is_some() && digit(low).is_some());
        if is_plain(byte) || is_encoded {
            out.push(byte);
        } else {
            out.push(b'%');
            out.extend([byte >> 4, byte & 15].map(|digit| b"0123456789ABCDEF"[usize::from(digit)]));
        }
    }
}

fn slash_first(target: &[u8]) -> Cow<'_, [u8]> {
    match target {
        [b'/', ..] => Cow::Borrowed(target),
        [] => Cow::Borrowed(b"/"),
        // The slash that the rest starts with was encoded.
        [b'%', b'2', b'f' | b'F', rest @ ..] => Cow::Owned([b"/", rest].concat()),
        _ => Cow::Owned([b"/", target].concat()),
    }
}

/// Whether the first `length` bytes of a path end at a segment boundary.
pub(super) fn on_border(path: &[u8], length: usize) -> bool {
    match length {
        0 => true,
        _ if length > path.len() => false,
        _ => length == path.len() || path[length - 1] == b'/' || path[length] == b'/',
    }
}

/// Whether a path is certainly in normal form. Nearly all paths are, so most need only this check.
fn is_normal(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"/") else {
        return true;
    };
    let mut before = b'/';
    rest.iter().all(|&byte| {
        let odd = byte == b'%' || (before == b'/' && matches!(byte, b'/' | b'.'));
        before = byte;
        !odd
    })
}

/// The normal form of a path that starts with a slash: its bytes, each with the position in the path as sent
/// after it.
fn normalise(path: &[u8]) -> Vec<(u8, usize)> {
    let decoded = decode(path);
    let mut kept: Vec<(u8, usize)> = Vec::with_capacity(decoded.len());
    let mut begin = 0;
    while begin < decoded.len() {
        // A segment with the slash in front of it.
        let (slash, rest) = (decoded[begin], &decoded[begin + 1..]);
        let length = rest.iter().position(|(byte, _)| *byte == b'/').unwrap_or(rest.len());
        let segment = &rest[..length];
        begin += 1 + length;
        let is_last = begin == decoded.len();
        match segment {
            [] | [(b'.', _)] => {}
            [(b'.', _), (b'.', _)] => {
                kept.truncate(kept.iter().rposition(|(byte, _)| *byte == b'/').unwrap_or(0));
            }
            segment => {
                kept.push(slash);
                kept.extend_from_slice(segment);
                continue;
            }
        }
        if is_last {
            kept.push(slash);
        }
    }
    kept
}

/// Decodes each percent-encoded byte except `%`, which could start another triplet. One that starts none is encoded for
/// the same reason: the normal form of a normal form is the same.
fn decode(path: &[u8]) -> Vec<(u8, usize)> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut at = 0;
    while at < path.len() {
        let encoded = match path[at..] {
            [b'%', high, low, ..] => digit(high).zip(digit(low)).map(|(high, low)| high * 16 + low),
            _ => None,
        };
        match encoded.filter(|byte| *byte != b'%') {
            Some(byte) => {
                at += 3;
                decoded.push((byte, at));
            }
            None if path[at] == b'%' && encoded.is_none() => {
                at += 1;
                decoded.extend(b"%25".map(|byte| (byte, at)));
            }
            None => {
                at += 1;
                decoded.push((path[at - 1], at));
            }
        }
    }
    decoded
}

fn digit(byte: u8) -> Option<u8> {
    // At most 15.
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn resolves_dot_segments_in_every_spelling() {
        for (path, wanted) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e/b", "/b"),
            ("/a/./b", "/a/b"),
            ("/a/b/..", "/a/"),
            ("/a/b/.", "/a/b/"),
            ("/..", "/"),
            ("/../../a", "/a"),
            ("/a/.../b", "/a/.../b"),
            ("/a/.b/..c", "/a/.b/..c"),
            ("/a%2ejs", "/a.js"),
            ("/a/%2e%2e%2fb", "/b"),
            ("/a/%252e%252e/b", "/a/%252e%252e/b"),
            // As in nginx: slashes are merged first.
            ("/a//../b", "/b"),
            ("/a/%2", "/a/%252"),
            ("/%%32e", "/%252e"),
            ("/%61dmin", "/admin"),
            ("//admin", "/admin"),
            ("///admin//x/", "/admin/x/"),
            ("/.//admin", "/admin"),
            ("/x/..//admin", "/admin"),
            ("/%2fadmin", "/admin"),
            ("/admin%2Fx", "/admin/x"),
            ("/admin%2f", "/admin/"),
            ("/%41%2d%7e%5f", "/A-~_"),
            ("/a%2Bb%20c", "/a+b c"),
            ("/a%zz%4", "/a%25zz%254"),
            ("//", "/"),
            ("/.", "/"),
            ("/a;x/b", "/a;x/b"),
            ("*", "*"),
            ("", ""),
        ] {
            assert_eq!(normalised(path.as_bytes()), wanted.as_bytes(), "{path}");
        }
    }

    #[test]
    fn strips_a_prefix_and_keeps_the_slash() {
        for (prefix, target, wanted) in [
            ("/api", "/api/x?y", "/x?y"),
            ("/api/", "/api/x?y", "/x?y"),
            ("/api", "/api", "/"),
            ("/api", "/api?y=/../z", "/?y=/../z"),
            ("/api", "/api/", "/"),
            ("/api/", "/api/", "/"),
            ("/", "/x", "/x"),
            ("/api", "/other/../api/x?y", "/x?y"),
            ("/api", "/%2e/api?y", "/?y"),
            ("/api", "/other", "/other"),
            ("/api", "", "/"),
            // The rest after the prefix stays as sent.
            ("/api", "/%61pi/a%2fb//c/%2e?y", "/a%2fb//c/%2e?y"),
            ("/api", "//api//x", "//x"),
            ("/api", "/api%2fx?y", "/x?y"),
            ("/api", "/x/..//api", "/"),
            ("/a/b", "/a%2Fb/c%20d", "/c%20d"),
            ("/caf\u{e9}", "/caf%C3%A9/x", "/x"),
        ] {
            let stripped = strip_prefix(prefix, target.as_bytes());
            assert_eq!(stripped, wanted.as_bytes(), "{prefix} removed from {target}");
        }
    }

    proptest! {
        #[test]
        fn normal_form_is_stable_and_free_of_dot_segments(path in "/([/.ab]|%2[eEfF5]|%6[1-9a-fA-F]){0,24}") {
            let once = normalised(path.as_bytes()).into_owned();
            prop_assert!(once.starts_with(b"/"));
            prop_assert!(!once.split(|&byte| byte == b'/').any(|part| part == b"." || part == b".."));
            prop_assert!(!once.windows(2).any(|pair| pair == b"//"));
            // Decoding can create a new triplet only after a percent sign, which is not decoded.
            prop_assert_eq!(normalised(&once).into_owned(), once);
        }

        #[test]
        fn stripped_targets_begin_with_a_slash(prefix in "(/[ab]{0,2}){1,2}", target in "[/.ab?%2e]{0,16}") {
            prop_assert!(strip_prefix(&prefix, target.as_bytes()).starts_with(b"/"));
        }

        #[test]
        fn exactly_the_prefix_is_stripped(path in "/([/.ab]|%2[eEfF5]|%6[12]){0,24}") {
            let normal = normalised(path.as_bytes()).into_owned();
            for at in (1..=normal.len()).filter(|at| *at == normal.len() || normal[*at] == b'/') {
                let prefix = std::str::from_utf8(&normal[..at]).unwrap();
                let stripped = strip_prefix(prefix, path.as_bytes()).into_owned();
                let kept = prefix.strip_suffix('/').unwrap_or(prefix).len();
                let wanted = if kept == normal.len() { b"/" } else { &normal[kept..] };
                prop_assert_eq!(normalised(&stripped).into_owned(), wanted, "{} off {}", prefix, path);
            }
        }
    }
}
