//! Paths as routes see them: without dot segments, and with a route's prefix taken off.
//!
//! Not a general URI library: nothing but encoded dots is decoded, and empty segments stay.

use std::borrow::Cow;

use memchr::memmem;

/// The path with `%2e` decoded and dot segments resolved (RFC 3986 6.2.2.2 and 6.2.2.3).
///
/// An origin resolves `/public/../admin` or `/public/%2e%2e/admin` to `/admin`; matching the bytes as
/// sent would let such a target through a route for `/public`. Only paths that contain `/.` or `%2e`
/// are rewritten. Slashes are neither decoded nor merged, as `%2F` and `//` may mean something to the
/// origin; so an origin that does either must not rest its access rules on a prefix here.
pub fn normalised(path: &[u8]) -> Cow<'_, [u8]> {
    let encoded = encoded_dot(path).is_some();
    if !path.starts_with(b"/") || !(encoded || memmem::find(path, b"/.").is_some()) {
        return Cow::Borrowed(path);
    }
    let decoded = if encoded { decode_dots(path) } else { Cow::Borrowed(path) };
    Cow::Owned(remove_dot_segments(&decoded))
}

/// The target with `prefix` taken off its path; always begins with `/` and keeps the query.
///
/// `prefix` is a route's, which [`super::Router::find`] has matched. The path is first brought into its
/// [`normalised`] form, in which it matched. Not for the asterisk form (RFC 9112 3.2.4).
pub fn strip_prefix<'p>(prefix: &str, path_and_query: &'p [u8]) -> Cow<'p, [u8]> {
    let query_at = memchr::memchr(b'?', path_and_query).unwrap_or(path_and_query.len());
    let (path, query) = path_and_query.split_at(query_at);
    // With its last slash left in place the rest keeps the slash that it has to begin with.
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix).as_bytes();
    match normalised(path) {
        Cow::Borrowed(path) => {
            let skipped = path.strip_prefix(prefix).map_or(0, |_| prefix.len());
            slash_first(&path_and_query[skipped..])
        }
        Cow::Owned(path) => {
            let rest = path.strip_prefix(prefix).unwrap_or(&path);
            Cow::Owned(slash_first(&[rest, query].concat()).into_owned())
        }
    }
}

fn slash_first(target: &[u8]) -> Cow<'_, [u8]> {
    match target.first() {
        Some(b'/') => Cow::Borrowed(target),
        None => Cow::Borrowed(b"/"),
        Some(_) => Cow::Owned([b"/", target].concat()),
    }
}

fn encoded_dot(path: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'%', path).find(|&at| is_encoded_dot(&path[at..]))
}

fn is_encoded_dot(bytes: &[u8]) -> bool {
    matches!(bytes, [b'%', b'2', b'e' | b'E', ..])
}

fn decode_dots(path: &[u8]) -> Cow<'_, [u8]> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = encoded_dot(rest) {
        decoded.extend_from_slice(&rest[..at]);
        decoded.push(b'.');
        rest = &rest[at + 3..];
    }
    decoded.extend_from_slice(rest);
    Cow::Owned(decoded)
}

/// RFC 3986 5.2.4 for a path that begins with a slash.
fn remove_dot_segments(path: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(path.len());
    let mut segments = path[1..].split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            b"." => {}
            b".." => kept.truncate(memchr::memrchr(b'/', &kept).unwrap_or(0)),
            _ => {
                kept.push(b'/');
                kept.extend_from_slice(segment);
                continue;
            }
        }
        if last {
            kept.push(b'/');
        }
    }
    kept
}

#[cfg(test)]
mod tests {
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
            ("/a/%2e%2e%2fb", "/a/..%2fb"),
            ("/a/%252e%252e/b", "/a/%252e%252e/b"),
            ("/a//../b", "/a/b"),
            ("/a/%2", "/a/%2"),
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
        ] {
            let stripped = strip_prefix(prefix, target.as_bytes());
            assert_eq!(stripped, wanted.as_bytes(), "{prefix} off {target}");
        }
    }

    proptest! {
        #[test]
        fn normal_form_is_final_and_free_of_dot_segments(path in "/([/.ab]|%2[eEfF5]){0,24}") {
            let once = normalised(path.as_bytes()).into_owned();
            prop_assert!(once.starts_with(b"/"));
            prop_assert!(!once.split(|&byte| byte == b'/').any(|part| part == b"." || part == b".."));
            // Decoding can join bytes to a new triplet only after a percent sign, which is not decoded.
            prop_assert_eq!(normalised(&once).into_owned(), once);
        }

        #[test]
        fn stripped_targets_begin_with_a_slash(prefix in "(/[ab]{0,2}){1,2}", target in "[/.ab?%2e]{0,16}") {
            prop_assert!(strip_prefix(&prefix, target.as_bytes()).starts_with(b"/"));
        }
    }
}
