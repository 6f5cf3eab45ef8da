//! Answers that sluice makes itself: their words, and the one place where they become bytes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use crate::error::Reason;
use crate::http::{FieldKind, Method, RequestHead, Version, canonical_reason};
use crate::service::entry::ServiceEntry;

/// Seconds after which a client turned away by 503 may try again.
const RETRY_AFTER_S: u32 = 1;
/// Largest error page that is read into memory, in bytes.
const PAGE_BYTES_MAX: u64 = 1024 * 1024;

/// Bodies of error pages by status, with their type.
#[derive(Clone, Default)]
pub(crate) struct ErrorPages(BTreeMap<u16, (&'static str, Vec<u8>)>);

impl ErrorPages {
    /// Reads the configured files.
    ///
    /// # Errors
    /// A sentence that names the file that cannot be used.
    pub(crate) fn load(pages: &BTreeMap<u16, PathBuf>) -> Result<Self, String> {
        let mut loaded = BTreeMap::new();
        for (status, path) in pages {
            let problem = |what: String| format!("error_pages.{status}: {}: {what}", path.display());
            let size = std::fs::metadata(path).map_err(|error| problem(error.to_string()))?.len();
            if size > PAGE_BYTES_MAX {
                return Err(problem(format!("{size} bytes; at most {PAGE_BYTES_MAX} are kept in memory")));
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
        }
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
        }
    }

    /// A configured redirect; see [`crate::config::Action::Redirect`] for the placeholders.
    pub(crate) fn redirect(status: u16, location: &str, head: &RequestHead) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let target = text(head.path_and_query());
        let (path, query) = match target.find('?') {
            Some(at) => target.split_at(at),
            None => (target.as_str(), ""),
        };
        let location = location
            .replace("{host}", &text(head.host_name()))
            .replace("{path}", path)
            .replace("{query}", query);
        Self {
            status,
            reason: None,
            body: None,
            location: Some(location),
            allow: None,
            message: String::new(),
        }
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

/// Text as it may stand between tags.
pub(crate) fn escape_html(text: &str) -> Cow<'_, str> {
    if !text.contains(['<', '>', '&', '"', '\'']) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
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

/// Appends the whole answer to `out`, fit for the request in `head` (which may be empty).
pub(crate) fn encode(
    out: &mut Vec<u8>,
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
    // Writing into a Vec cannot fail.
    let _ = write!(out, "HTTP/1.1 {} {}\r\n", local.status, canonical_reason(local.status));
    if let Some(location) = &local.location {
        let _ = write!(out, "Location: {location}\r\n");
    }
    if let Some(hsts) = hsts {
        out.extend_from_slice(b"Strict-Transport-Security: ");
        out.extend_from_slice(hsts);
        out.extend_from_slice(b"\r\n");
    }
    if let Some(allow) = &local.allow {
        let _ = write!(out, "Allow: {allow}\r\n");
    }
    if local.status == 503 {
        let _ = write!(out, "Retry-After: {RETRY_AFTER_S}\r\n");
    }
    if let Some(reason) = local.reason {
        let _ = write!(out, "X-Sluice-Reason: {}\r\nCache-Control: no-store\r\n", reason.word());
    }
    for (name, value) in extra {
        for part in [*name, b": ", *value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    let bodiless = matches!(local.status, 204 | 304);
    if !bodiless {
        let _ = write!(out, "Content-Type: {content_type}\r\nContent-Length: {}\r\n", body.len());
    }
    match (keep_alive, head.version()) {
        (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
        (true, Version::Http10) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (true, Version::Http11) => {}
    }
    out.extend_from_slice(b"\r\n");
    if !bodiless && head.method() != Method::Head {
        out.extend_from_slice(&body);
    }
}
