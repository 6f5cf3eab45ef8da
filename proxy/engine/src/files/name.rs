//! The name of a file by the path of a request.

/// The folder of RFC 8615, the only hidden one that is served.
const WELL_KNOWN: &[u8] = b".well-known";

/// A name below the folder of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Segments between single slashes, without one at either end. Empty for the folder itself.
    pub(super) relative: Vec<u8>,
    /// Whether the path ends with a slash, so that it can only be a folder.
    pub(super) is_folder: bool,
}

impl Name {
    /// The name for a path in its normal form: decoded, except `%25`. `None` if no file may have it: a hidden one, or one
    /// that a filesystem cannot have. With `serves_hidden`, hidden ones may be served.
    pub(super) fn of(path: &[u8], serves_hidden: bool) -> Option<Self> {
        let path = path.strip_prefix(b"/")?;
        let mut relative = Vec::with_capacity(path.len());
        for (at, segment) in
            path.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty()).enumerate()
        {
            let is_hidden = segment.starts_with(b".") && !(at == 0 && segment == WELL_KNOWN);
            if (is_hidden && !serves_hidden) || segment.contains(&0) {
                return None;
            }
            if at > 0 {
                relative.push(b'/');
            }
            push_decoded(segment, &mut relative);
        }
        Some(Self { relative, is_folder: path.is_empty() || path.ends_with(b"/") })
    }

    /// The name of a file in this folder.
    pub(super) fn with(&self, file: &str) -> Vec<u8> {
        match self.relative.is_empty() {
            true => file.as_bytes().to_vec(),
            false => [&self.relative[..], b"/", file.as_bytes()].concat(),
        }
    }
}

/// The only bytes that are still encoded are percent signs.
fn push_decoded(segment: &[u8], out: &mut Vec<u8>) {
    let mut rest = segment;
    while let Some(at) = memchr::memmem::find(rest, b"%25") {
        out.extend_from_slice(&rest[..=at]);
        rest = &rest[at + 3..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_core::router::normalised;

    use super::*;

    fn name(path: &str) -> Option<(String, bool)> {
        let name = Name::of(&normalised(path.as_bytes()), false)?;
        Some((String::from_utf8_lossy(&name.relative).into_owned(), name.is_folder))
    }

    #[test]
    fn every_spelling_of_a_path_is_one_name() {
        for (path, wanted) in [
            ("/", Some(("", true))),
            ("/a/b.css", Some(("a/b.css", false))),
            ("/a/", Some(("a", true))),
            ("//a///b", Some(("a/b", false))),
            ("/a/../b", Some(("b", false))),
            ("/%61%2fb", Some(("a/b", false))),
            ("/../../etc/passwd", Some(("etc/passwd", false))),
            ("/a%20b", Some(("a b", false))),
            ("/100%25", Some(("100%", false))),
            ("/a%252fb", Some(("a%2fb", false))),
            ("/a%252e%252e/b", Some(("a%2e%2e/b", false))),
            ("/%zz", Some(("%zz", false))),
            ("/a\\..\\b", Some(("a\\..\\b", false))),
            ("/.well-known/security.txt", Some((".well-known/security.txt", false))),
            ("/.git/config", None),
            ("/%2egit/config", None),
            ("/a/.env", None),
            ("/a/.well-known/x", None),
            ("/.well-known/.x", None),
            ("/.well-knownx", None),
            ("/a/...", None),
            ("/a%00.css", None),
            ("*", None),
        ] {
            let wanted = wanted.map(|(name, is_folder)| (name.to_owned(), is_folder));
            assert_eq!(name(path), wanted, "{path}");
        }
    }

    proptest! {
        #[test]
        fn a_name_stays_below_its_folder(path in "/([/.ab\\\\]|%2[eEfF5]|%00|%){0,24}") {
            if let Some(name) = Name::of(&normalised(path.as_bytes()), false) {
                prop_assert!(!name.relative.starts_with(b"/") && !name.relative.contains(&0));
                let mut segments = name.relative.split(|byte| *byte == b'/');
                prop_assert!(name.relative.is_empty() || segments.all(|part| !part.is_empty() && part[0] != b'.'));
            }
        }
    }
}
