//! Paths as routes see them: in one normal form however they are spelled, and with a route's prefix taken off.
//!
//! What is forwarded stays as the client sent it.

use std::borrow::Cow;

/// The path as routes are matched by it: percent-encoded bytes decoded, but for `%25`; runs of slashes merged; dot segments
/// resolved (RFC 3986 6.2.2).
///
/// An origin may serve `/%61dmin`, `//admin`, `/x/../admin` or `/admin%2fx` as it serves `/admin`, so a rule for that must
/// hold for all of them. Parameters (`/admin;x`), case and backslashes stay: a prefix does not hold for them.
pub fn normalised(path: &[u8]) -> Cow<'_, [u8]> {
    if is_normal(path) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(normalise(path).into_iter().map(|(byte, _)| byte).collect())
}

/// The target with `prefix` taken off its path; always begins with `/` and keeps the query.
///
/// `prefix` is a route's, which [`super::Router::find`] has matched. What is behind it stays as it was sent. Not for the
/// asterisk form (RFC 9112 3.2.4).
pub fn strip_prefix<'p>(prefix: &str, path_and_query: &'p [u8]) -> Cow<'p, [u8]> {
    let query_at = memchr::memchr(b'?', path_and_query).unwrap_or(path_and_query.len());
    let path = &path_and_query[..query_at];
    let prefix = normalised(prefix.as_bytes());
    // With its last slash left in place the rest keeps the slash that it has to begin with.
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
    // All that was taken into the prefix, such as `..`, is in front of this.
    let taken = prefix.len().checked_sub(1).and_then(|last| normal.get(last));
    let rest = taken.map_or(0, |(byte, at)| if path[*at] == *byte { at + 1 } else { at + 3 });
    slash_first(&path_and_query[rest..])
}

fn slash_first(target: &[u8]) -> Cow<'_, [u8]> {
    match target {
        [b'/', ..] => Cow::Borrowed(target),
        [] => Cow::Borrowed(b"/"),
        // The slash that the rest begins with was encoded.
        [b'%', b'2', b'f' | b'F', rest @ ..] => Cow::Owned([b"/", rest].concat()),
        _ => Cow::Owned([b"/", target].concat()),
    }
}

/// Whether a path is in normal form for certain; hardly any is not, so this is all that is done to most.
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

/// The normal form of a path that begins with a slash: its bytes, each with its place in the path as sent.
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

/// Decodes each percent-encoded byte but `%`, which could begin another one.
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
                decoded.push((byte, at));
                at += 3;
            }
            None => {
                decoded.push((path[at], at));
                at += 1;
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
    fn resolves_dot_segments_however_they_are_written() {
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
            // As nginx: slashes are merged first.
            ("/a//../b", "/b"),
            ("/a/%2", "/a/%2"),
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
            ("/a%zz%4", "/a%zz%4"),
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
            // What is behind the prefix stays as it was sent.
            ("/api", "/%61pi/a%2fb//c/%2e?y", "/a%2fb//c/%2e?y"),
            ("/api", "//api//x", "//x"),
            ("/api", "/api%2fx?y", "/x?y"),
            ("/api", "/x/..//api", "/"),
            ("/a/b", "/a%2Fb/c%20d", "/c%20d"),
            ("/caf\u{e9}", "/caf%C3%A9/x", "/x"),
        ] {
            let stripped = strip_prefix(prefix, target.as_bytes());
            assert_eq!(stripped, wanted.as_bytes(), "{prefix} off {target}");
        }
    }

    proptest! {
        #[test]
        fn normal_form_is_final_and_free_of_dot_segments(path in "/([/.ab]|%2[eEfF5]|%6[1-9a-fA-F]){0,24}") {
            let once = normalised(path.as_bytes()).into_owned();
            prop_assert!(once.starts_with(b"/"));
            prop_assert!(!once.split(|&byte| byte == b'/').any(|part| part == b"." || part == b".."));
            prop_assert!(!once.windows(2).any(|pair| pair == b"//"));
            // Decoding can join bytes to a new triplet only after a percent sign, which is not decoded.
            prop_assert_eq!(normalised(&once).into_owned(), once);
        }

        #[test]
        fn stripped_targets_begin_with_a_slash(prefix in "(/[ab]{0,2}){1,2}", target in "[/.ab?%2e]{0,16}") {
            prop_assert!(strip_prefix(&prefix, target.as_bytes()).starts_with(b"/"));
        }

        #[test]
        fn what_is_stripped_is_the_prefix_and_nothing_else(path in "/([/.ab]|%2[eEfF5]|%6[12]){0,24}") {
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
