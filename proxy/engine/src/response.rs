//! Answers that sluice makes itself: their words, and the one place where they become bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use sluice_core::error::Reason;
use sluice_core::html::escape_html;
use sluice_core::service::entry::ServiceEntry;
use sluice_http::{FieldKind, Framing, Method, RequestHead, Version, canonical_reason};

use crate::opening::Opening;

/// Which error page cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub struct PagesError(String);

/// Seconds after which a client turned away by 503 may try again.
const RETRY_AFTER_S: &[u8] = b"1";
/// Largest error page that is read into memory, in bytes.
const PAGE_BYTES_MAX: u64 = 1024 * 1024;

/// Bodies of error pages by status, with their type.
#[derive(Clone, Default)]
pub struct ErrorPages(BTreeMap<u16, (&'static str, Vec<u8>)>);

impl ErrorPages {
    /// Reads the configured files.
    ///
    /// # Errors
    /// A sentence that names the file that cannot be used.
    pub fn load(pages: &BTreeMap<u16, PathBuf>) -> Result<Self, PagesError> {
        let mut loaded = BTreeMap::new();
        for (status, path) in pages {
            let problem = |what: String| format!("error_pages.{status}: {}: {what}", path.display());
            let size = std::fs::metadata(path).map_err(|error| problem(error.to_string()))?.len();
            if size > PAGE_BYTES_MAX {
                return Err(
                    problem(format!("{size} bytes; at most {PAGE_BYTES_MAX} are kept in memory")).into()
                );
            }
            let body = std::fs::read(path).map_err(|error| problem(error.to_string()))?;
            let content_type = match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => "application/json",
                Some("txt") => "text/plain; charset=utf-8",
                _ => "text/html; charset=utf-8",
            };
            loaded.insert(*status, (content_type, body));
        }
        Ok(Self(loaded))
    }
}

/// An answer of our own.
pub(crate) struct Local<'a> {
    pub(crate) status: u16,
    /// The one word that says why.
    reason: Option<Reason>,
    body: Option<(&'a str, &'a str)>,
    location: Option<String>,
    /// Methods that the resource allows, for 405.
    pub(crate) allow: Option<String>,
    /// What else there is to say.
    message: String,
    /// Whether it answers a HEAD that could not be read.
    is_to_head: bool,
}

/// Longest Location made from a template, in bytes: twice the longest target that is taken by default.
const LOCATION_BYTES_MAX: usize = 16 * 1024;

/// The Location that a template makes of a request, in one pass; `None` if it gets too long. It never begins with two
/// slashes, which browsers would take for another host; nor with a slash and a backslash, which they take for the same.
fn location(template: &str, head: &RequestHead) -> Option<String> {
    let target = head.path_and_query();
    let at = memchr::memchr(b'?', target).unwrap_or(target.len());
    let (path, query) = target.split_at(at);
    // `*` is of no path in particular.
    let path = if path.starts_with(b"/") { path } else { b"/" };
    let mut location = String::with_capacity(template.len() + target.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        location.push_str(before);
        // Validation lets no other placeholder through.
        let (name, after) = after.split_once('}').unwrap_or_default();
        match name {
            "host" => location.push_str(&String::from_utf8_lossy(head.host_name())),
            "path" => push_path(&mut location, path),
            _ => location.push_str(&String::from_utf8_lossy(query)),
        }
        if location.len() > LOCATION_BYTES_MAX {
            return None;
        }
        rest = after;
    }
    location.push_str(rest);
    // Whatever was empty in front.
    while location.starts_with("//") || location.starts_with("/\\") {
        location.remove(1);
    }
    (location.len() <= LOCATION_BYTES_MAX).then_some(location)
}

/// Appends a path, without the slashes that would begin a host where it stands.
fn push_path(location: &mut String, path: &[u8]) {
    let slashes = path.iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
    let path = match location.as_bytes().last() {
        Some(b'/') => &path[slashes..],
        // Behind its scheme, or first of all.
        None | Some(b':') => {
            location.push('/');
            &path[slashes..]
        }
        Some(_) => path,
    };
    location.push_str(&String::from_utf8_lossy(path));
}

impl<'a> Local<'a> {
    /// The answer to a failure.
    pub(crate) fn reason(reason: Reason) -> Self {
        Self {
            status: reason.status(),
            reason: Some(reason),
            body: None,
            location: None,
            allow: None,
            message: String::new(),
            is_to_head: false,
        }
    }

    /// The same to a HEAD that could not be read, if it is one.
    pub(crate) fn for_head(self, is_to_head: bool) -> Self {
        Self { is_to_head, ..self }
    }

    /// The same with something to say to whoever reads it; nothing if it is empty.
    pub(crate) fn saying(self, message: &str) -> Self {
        Self { message: message.to_owned(), ..self }
    }

    /// A redirect to exactly there.
    pub(crate) fn found_at(status: u16, location: String) -> Self {
        Self { location: Some(location), ..Self::fixed(status, "", "text/plain; charset=utf-8") }
    }

    /// A redirect to the same over https, at this port; `None` for a request that says no host. Methods but GET and HEAD
    /// stay what they are.
    pub(crate) fn to_https(port: u16, head: &RequestHead) -> Option<Self> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (host, target) = (text(head.host_name()), text(head.path_and_query()));
        let status = if matches!(head.method(), Method::Get | Method::Head) { 301 } else { 308 };
        let port = if port == 443 { String::new() } else { format!(":{port}") };
        // `*` is of no host in particular.
        let target = if target.starts_with('/') { &target } else { "/" };
        (!host.is_empty()).then(|| Self::found_at(status, format!("https://{host}{port}{target}")))
    }

    /// A configured answer.
    pub(crate) fn fixed(status: u16, body: &'a str, content_type: &'a str) -> Self {
        Self {
            status,
            reason: None,
            body: Some((content_type, body)),
            location: None,
            allow: None,
            message: String::new(),
            is_to_head: false,
        }
    }

    /// A configured redirect; see [`sluice_config::Action::Redirect`] for the placeholders.
    ///
    /// # Errors
    /// When the Location would be longer than anybody takes.
    pub(crate) fn redirect(status: u16, template: &str, head: &RequestHead) -> Result<Self, Reason> {
        let location = location(template, head).ok_or(Reason::TargetTooLong)?;
        Ok(Self {
            status,
            reason: None,
            body: None,
            location: Some(location),
            allow: None,
            message: String::new(),
            is_to_head: false,
        })
    }

    /// Whether it tells of a failure.
    pub(crate) fn is_failure(&self) -> bool {
        self.reason.is_some()
    }

    fn json(&self, status: u16, phrase: &str, word: &str) -> String {
        let message = match self.message.as_str() {
            "" => String::new(),
            message => format!(",\"message\":{}", serde_json::Value::from(message)),
        };
        format!("{{\"status\":{status},\"error\":\"{phrase}\",\"reason\":\"{word}\"{message}}}\n")
    }

    /// A page of a service's own, where it has one for what went wrong.
    pub(crate) fn page(&self, service: &ServiceEntry) -> Option<String> {
        self.reason.and_then(|_| service.pages.render(self.status, &self.message))
    }

    fn content<'p>(&'p self, head: &RequestHead, pages: &'p ErrorPages) -> (&'p str, Cow<'p, [u8]>) {
        if let Some((content_type, body)) = self.body {
            return (content_type, Cow::Borrowed(body.as_bytes()));
        }
        if let Some((content_type, page)) = pages.0.get(&self.status) {
            return (content_type, Cow::Borrowed(page));
        }
        let phrase = canonical_reason(self.status);
        let word = self.reason.map_or("", Reason::word);
        let status = self.status;
        // What an operator has to say; else the word.
        let said = if self.message.is_empty() { word } else { &self.message };
        match preferred(head) {
            Kind::Html => (
                "text/html; charset=utf-8",
                format!(
                    "<!doctype html><title>{status} {phrase}</title><h1>{status} {phrase}</h1><p>{}</p>\n",
                    escape_html(said)
                )
                .into_bytes()
                .into(),
            ),
            Kind::Json => ("application/json", self.json(status, phrase, word).into_bytes().into()),
            Kind::Text => {
                ("text/plain; charset=utf-8", format!("{status} {phrase} {said}\n").into_bytes().into())
            }
        }
    }
}

enum Kind {
    Text,
    Html,
    Json,
}

/// The first type in Accept that we can make; quality values are not weighed, for browsers put HTML and
/// programs JSON first.
fn preferred(head: &RequestHead) -> Kind {
    let accept = head.field(FieldKind::Accept).unwrap_or_default();
    accept
        .split(|byte| *byte == b',')
        .find_map(|range| match range.split(|byte| *byte == b';').next()?.trim_ascii() {
            b"text/html" | b"application/xhtml+xml" => Some(Kind::Html),
            b"application/json" => Some(Kind::Json),
            b"text/plain" | b"text/*" => Some(Kind::Text),
            _ => None,
        })
        .unwrap_or(Kind::Text)
}

/// What an answer has beside what its reason says.
#[derive(Default)]
pub(crate) struct Further<'a> {
    /// A body in place of ours.
    pub(crate) body: Option<String>,
    /// More fields.
    pub(crate) fields: &'a [(&'a [u8], &'a [u8])],
    /// The value of Strict-Transport-Security.
    pub(crate) hsts: Option<&'a [u8]>,
}

/// Writes the whole answer to `out`, fit for the request in `head` (which may be empty).
#[expect(clippy::too_many_arguments, reason = "pure: all that an answer of our own depends on")]
pub(crate) fn encode(
    out: &mut Opening,
    local: &Local<'_>,
    head: &RequestHead,
    keep_alive: bool,
    pages: &ErrorPages,
    further: Further<'_>,
) {
    let Further { body: own, fields: extra, hsts } = further;
    let (content_type, body) = match own {
        Some(page) => ("text/html; charset=utf-8", Cow::Owned(page.into_bytes())),
        None => local.content(head, pages),
    };
    let is_bodiless = matches!(local.status, 204 | 304);
    let sink = out.head();
    sink.response(local.status, canonical_reason(local.status).as_bytes());
    if let Some(location) = &local.location {
        sink.field(b"Location", location.as_bytes());
    }
    if let Some(hsts) = hsts {
        sink.field(b"Strict-Transport-Security", hsts);
    }
    if let Some(allow) = &local.allow {
        sink.field(b"Allow", allow.as_bytes());
    }
    if local.status == 503 {
        sink.field(b"Retry-After", RETRY_AFTER_S);
    }
    if let Some(reason) = local.reason {
        sink.field(b"X-Sluice-Reason", reason.word().as_bytes());
        sink.field(b"Cache-Control", b"no-store");
    }
    for (name, value) in extra {
        sink.field(name, value);
    }
    if !is_bodiless {
        sink.field(b"Content-Type", content_type.as_bytes());
        sink.framing(Framing::Length(body.len() as u64));
    }
    match (keep_alive, head.version()) {
        (false, _) => sink.connection_field(b"Connection", b"close"),
        (true, Version::Http10) => sink.connection_field(b"Connection", b"keep-alive"),
        (true, Version::Http11 | Version::Http2) => {}
    }
    sink.end();
    if !is_bodiless && !local.is_to_head && head.method() != Method::Head {
        out.bytes.extend_from_slice(&body);
    }
}

#[cfg(test)]
mod tests {
    use sluice_http::{HeadLimits, HeadScanner, Scan};

    use super::*;

    fn head(target: &str) -> RequestHead {
        let limits = HeadLimits { head_bytes_max: 65_536, headers_max: 9, target_bytes_max: 65_536 };
        let bytes = format!("OPTIONS {target} HTTP/1.1\r\nHost: h.test:8080\r\n\r\n").into_bytes();
        let mut head = RequestHead::new();
        assert!(matches!(HeadScanner::new().scan(&bytes, &limits), Ok(Scan::Complete(_))));
        assert!(head.parse(&bytes, &limits).is_ok(), "{target}");
        head
    }

    #[test]
    fn a_location_is_made_in_one_pass() {
        for (template, target, wanted) in [
            ("https://{host}{path}{query}", "/a?b=1", "https://h.test/a?b=1"),
            ("https://{host}{path}{query}", "/{query}{path}?{host}", "https://h.test/{query}{path}?{host}"),
            ("https://{host}{path}", "*", "https://h.test/"),
            ("/new{path}{path}", "/a", "/new/a/a"),
            ("{path}", "/a?b", "/a"),
            ("/x", "/a?b", "/x"),
        ] {
            assert_eq!(location(template, &head(target)).as_deref(), Some(wanted), "{template} {target}");
        }
    }

    #[test]
    fn a_location_never_begins_a_host_that_the_client_names() {
        for target in ["//evil.test", "///evil.test", "/\\evil.test", "/\\/evil.test"] {
            for (template, wanted) in [
                ("{path}", "/evil.test"),
                ("{path}/more", "/evil.test/more"),
                ("/{path}", "/evil.test"),
                ("{query}{path}", "/evil.test"),
                ("{query}/{path}", "/evil.test"),
                ("https:{path}", "https:/evil.test"),
            ] {
                assert_eq!(location(template, &head(target)).as_deref(), Some(wanted), "{template} {target}");
            }
        }
        assert_eq!(location("{query}//b", &head("/a")).as_deref(), Some("/b"));
    }

    #[test]
    fn a_location_is_bounded() {
        let target = format!("/{}?{}", "{query}".repeat(580), "q".repeat(4000));
        let made = location("{path}{query}", &head(&target)).unwrap_or_default();
        assert_eq!(made, target);
        assert_eq!(location(&"{query}".repeat(5), &head(&target)), None);
        let exact = LOCATION_BYTES_MAX - 1;
        assert!(location("{path}", &head(&format!("/{}", "a".repeat(exact)))).is_some());
        assert!(location("{path}", &head(&format!("/{}", "a".repeat(exact + 1)))).is_none());
    }
}
