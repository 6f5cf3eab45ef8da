//! Conditional requests (RFC 9110 section 13): whether a client has the current content already, and whether what it
//! asks for still applies.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::request::RequestHead;

/// What identifies the content that a response would have.
#[derive(Clone, Copy, Debug)]
pub struct Validators<'a> {
    /// ETag as sent: `"a"`, or `W/"a"`; empty if there is none.
    pub etag: &'a [u8],
    /// Last-Modified, in seconds since 1970.
    pub modified_s: Option<u64>,
}

/// What the conditions of a request come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Respond as usual.
    Holds,
    /// The client has the content (304).
    NotModified,
    /// The client asks for something that has changed (412).
    Failed,
}

impl Validators<'_> {
    /// Evaluates the conditions of a GET or HEAD in the order of RFC 9110 section 13.2.2, except If-Range.
    pub fn check(&self, head: &RequestHead) -> Precondition {
        if has(head, b"if-match") {
            if !self.matches(head, b"if-match", is_same_strongly) {
                return Precondition::Failed;
            }
        } else if date(head, b"if-unmodified-since")
            .zip(self.modified_s)
            .is_some_and(|(since, modified)| modified > since)
        {
            return Precondition::Failed;
        }
        if has(head, b"if-none-match") {
            if self.matches(head, b"if-none-match", is_same_weakly) {
                return Precondition::NotModified;
            }
        } else if date(head, b"if-modified-since")
            .zip(self.modified_s)
            .is_some_and(|(since, modified)| modified <= since)
        {
            return Precondition::NotModified;
        }
        Precondition::Holds
    }

    /// Whether a range may be sent: If-Range, if there is one, names this content. A date does so only if it is the
    /// exact one, and if nothing could have changed within its second: `now_s` is the present.
    pub fn may_send_range(&self, head: &RequestHead, now_s: u64) -> bool {
        let Some(value) = only(head, b"if-range") else { return !has(head, b"if-range") };
        if value.starts_with(b"\"") || value.starts_with(b"W/") {
            return is_same_strongly(value, self.etag);
        }
        let modified = self.modified_s.filter(|modified| modified + 1 < now_s);
        modified.is_some() && read_http_date(value) == modified
    }

    fn matches(&self, head: &RequestHead, name: &[u8], is_same: fn(&[u8], &[u8]) -> bool) -> bool {
        let mut fields = head.fields().filter(|field| field.name.eq_ignore_ascii_case(name));
        fields.any(|field| {
            field.value.trim_ascii() == b"*" || Tags(field.value).any(|tag| is_same(tag, self.etag))
        })
    }
}

fn has(head: &RequestHead, name: &[u8]) -> bool {
    head.get(name).is_some()
}

fn only<'a>(head: &'a RequestHead, name: &[u8]) -> Option<&'a [u8]> {
    let mut fields = head.fields().filter(|field| field.name.eq_ignore_ascii_case(name));
    let first = fields.next()?;
    fields.next().is_none().then(|| first.value.trim_ascii())
}

/// The date of a field, unless it is malformed or there are several: then the field does not count (section 13.1.3).
fn date(head: &RequestHead, name: &[u8]) -> Option<u64> {
    read_http_date(only(head, name)?)
}

/// A time as HTTP writes it, in seconds since 1970; `None` if it is malformed, or earlier.
pub fn read_http_date(value: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    date.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// A time as HTTP writes it (RFC 9110 section 5.6.7). The input is in seconds since 1970.
pub fn http_date(seconds: u64) -> String {
    // The format ends with the year 9999.
    const LAST: u64 = 253_402_300_799;
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.min(LAST)));
    httpdate::fmt_http_date(time.unwrap_or(UNIX_EPOCH))
}

/// Section 8.8.3.2: a weak one is the same as none.
fn is_same_strongly(one: &[u8], other: &[u8]) -> bool {
    !one.is_empty() && one == other && !one.starts_with(b"W/")
}

/// Whether two entity tags are the same but for `W/` (RFC 9110 section 8.8.3.2); none is the same as an empty one.
pub fn is_same_weakly(one: &[u8], other: &[u8]) -> bool {
    let opaque = |tag: &[u8]| tag.strip_prefix(b"W/").unwrap_or(tag).to_vec();
    !one.is_empty() && opaque(one) == opaque(other)
}

/// The entity tags of a list. One that is malformed ends it.
struct Tags<'a>(&'a [u8]);

impl<'a> Iterator for Tags<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let begin = self.0.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b','))?;
        let list = &self.0[begin..];
        let prefix = if list.starts_with(b"W/") { 2 } else { 0 };
        if list.get(prefix) != Some(&b'"') {
            return None;
        }
        let length = list[prefix + 1..].iter().position(|byte| *byte == b'"')?;
        let (tag, rest) = list.split_at(prefix + length + 2);
        self.0 = rest;
        Some(tag)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::tests::{get_with, read_request};

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const SECONDS: u64 = 784_111_777;

    fn head(fields: &[(&str, &str)]) -> RequestHead {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        read_request(&get_with(fields.as_bytes())).unwrap().0
    }

    fn check(etag: &str, fields: &[(&str, &str)]) -> Precondition {
        Validators { etag: etag.as_bytes(), modified_s: Some(SECONDS) }.check(&head(fields))
    }

    #[test]
    fn conditions_are_evaluated_in_the_order_of_the_rfc() {
        use Precondition::{Failed, Holds, NotModified};
        for (fields, wanted) in [
            (&[][..], Holds),
            (&[("If-None-Match", "\"a\"")], NotModified),
            (&[("If-None-Match", "W/\"a\"")], NotModified),
            (&[("If-None-Match", "\"b\", \"a\"")], NotModified),
            (&[("If-None-Match", "\"b,\" ,, \"a\"")], NotModified),
            (&[("If-None-Match", "\"x\""), ("If-None-Match", "\"a\"")], NotModified),
            (&[("If-None-Match", "*")], NotModified),
            (&[("If-None-Match", "\"b\"")], Holds),
            (&[("If-None-Match", "a")], Holds),
            (&[("If-None-Match", "\"a")], Holds),
            (&[("If-None-Match", "")], Holds),
            // The tag has precedence over the date.
            (&[("If-None-Match", "\"b\""), ("If-Modified-Since", DATE)], Holds),
            (&[("If-Modified-Since", DATE)], NotModified),
            (&[("If-Modified-Since", "Sunday, 06-Nov-94 08:49:37 GMT")], NotModified),
            (&[("If-Modified-Since", "Sun Nov  6 08:49:37 1994")], NotModified),
            (&[("If-Modified-Since", BEFORE)], Holds),
            (&[("If-Modified-Since", "yesterday")], Holds),
            (&[("If-Modified-Since", DATE), ("If-Modified-Since", DATE)], Holds),
            (&[("If-Match", "\"a\"")], Holds),
            (&[("If-Match", "*")], Holds),
            (&[("If-Match", "W/\"a\"")], Failed),
            (&[("If-Match", "\"b\"")], Failed),
            (&[("If-Match", "\"a\""), ("If-Unmodified-Since", BEFORE)], Holds),
            (&[("If-Match", "\"a\""), ("If-None-Match", "\"a\"")], NotModified),
            (&[("If-Unmodified-Since", BEFORE)], Failed),
            (&[("If-Unmodified-Since", DATE)], Holds),
        ] {
            assert_eq!(check("\"a\"", fields), wanted, "{fields:?}");
        }
        assert_eq!(check("W/\"a\"", &[("If-None-Match", "\"a\"")]), NotModified);
        assert_eq!(check("W/\"a\"", &[("If-Match", "W/\"a\"")]), Failed);
        assert_eq!(check("", &[("If-None-Match", "\"\"")]), Holds);
    }

    #[test]
    fn a_range_is_of_the_content_that_the_client_has() {
        let may = |etag: &str, fields: &[(&str, &str)], now_s| {
            Validators { etag: etag.as_bytes(), modified_s: Some(SECONDS) }
                .may_send_range(&head(fields), now_s)
        };
        assert!(may("\"a\"", &[], SECONDS));
        assert!(may("\"a\"", &[("If-Range", "\"a\"")], SECONDS));
        assert!(!may("W/\"a\"", &[("If-Range", "W/\"a\"")], SECONDS));
        assert!(!may("\"a\"", &[("If-Range", "\"b\"")], SECONDS));
        assert!(may("\"a\"", &[("If-Range", DATE)], SECONDS + 2));
        assert!(!may("\"a\"", &[("If-Range", DATE)], SECONDS + 1));
        assert!(!may("\"a\"", &[("If-Range", BEFORE)], SECONDS + 2));
        assert!(!may("\"a\"", &[("If-Range", "x")], SECONDS + 2));
        assert!(!may("\"a\"", &[("If-Range", "\"a\""), ("If-Range", "\"a\"")], SECONDS + 2));
    }

    #[test]
    fn dates_are_written_as_http_does() {
        assert_eq!(http_date(SECONDS), DATE);
        assert_eq!(http_date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
