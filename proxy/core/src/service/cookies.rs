//! Reads cookies of a request as Go's net/http does, so that clients stay in the same rollout groups.

/// The value of the first cookie of this name in the values of a request's Cookie fields.
///
/// Blanks around a pair and quotes around a value are removed. A value with bytes that are invalid in cookies is
/// skipped.
pub(super) fn cookie<'a>(fields: impl IntoIterator<Item = &'a [u8]>, name: &[u8]) -> Option<&'a [u8]> {
    let pairs = fields.into_iter().flat_map(|field| field.split(|byte| *byte == b';'));
    pairs.filter_map(|pair| value(pair.trim_ascii(), name)).next()
}

fn value<'a>(pair: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let at = memchr::memchr(b'=', pair).unwrap_or(pair.len());
    if pair[..at].trim_ascii() != name {
        return None;
    }
    let value = pair.get(at + 1..).unwrap_or_default();
    let bare = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    let allowed = |byte: &u8| matches!(byte, 0x20..=0x7e) && !matches!(byte, b'"' | b';' | b'\\');
    bare.iter().all(allowed).then_some(bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cookie_of_the_name_is_used() {
        for (fields, wanted) in [
            (&["a=1; kamal-rollout=x"][..], Some("x")),
            (&["kamal-rollout=x;kamal-rollout=y"], Some("x")),
            (&["a=1", "kamal-rollout=z"], Some("z")),
            (&["kamal-rollout=\"q q\""], Some("q q")),
            (&["kamal-rollout=a=b"], Some("a=b")),
            (&["kamal-rollout="], Some("")),
            (&["kamal-rollout"], Some("")),
            (&["kamal-rollout=a\\b; kamal-rollout=c"], Some("c")),
            (&["xkamal-rollout=a", "Kamal-Rollout=a"], None),
            (&[], None),
        ] {
            let found = cookie(fields.iter().map(|field| field.as_bytes()), b"kamal-rollout");
            assert_eq!(found, wanted.map(str::as_bytes), "{fields:?}");
        }
    }
}
