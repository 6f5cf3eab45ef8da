//! Debug fields: a client that sends the token learns where a request went and how long each part of it took.
//!
//! Two response fields: Server-Timing, which browsers display, and X-Sluice-Debug. The token is compared in constant
//! time, and while the feature is on no origin ever sees it.

use std::borrow::Cow;
use std::fmt::Write;
use std::hint::black_box;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sluice_config as config;
use sluice_http::RequestHead;

use crate::progress::Progress;
use sluice_core::record::BodyPath;

/// The request field that carries the token, in lower case.
pub(crate) const FIELD: &[u8] = b"x-sluice-debug";

/// The token that a request must carry.
pub(crate) struct Token(Option<Vec<u8>>);

/// Whether a client may see how its request was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebugRequest {
    /// No client may; the field is forwarded like any other.
    Disabled,
    /// The request does not carry the token.
    Untrusted,
    /// The request carries the token.
    Trusted,
}

/// The facts of an exchange that are known from its start.
pub(crate) struct Facts<'a> {
    /// Name of the route.
    pub(crate) route: Option<&'a str>,
    /// Name of the cluster.
    pub(crate) cluster: Option<Cow<'a, str>>,
    pub(crate) request_id: Rc<[u8]>,
    /// When the request began.
    pub(crate) clock: Instant,
}

/// The values of the two fields.
pub(crate) struct Fields {
    timing: String,
    facts: String,
}

impl Token {
    /// Reads the token. If the file has become unreadable since the configuration was checked, no request is trusted.
    pub(crate) fn load(path: &Path) -> Self {
        let token = config::read_token(path);
        if let Err(error) = &token {
            tracing::error!(%error, "debug_token_file: no request gets debug information");
        }
        Self(token.ok())
    }

    /// Whether the request carries the token in exactly one field.
    fn is_shown_by(&self, head: &RequestHead) -> bool {
        let mut given = head.fields().filter(|field| field.name.eq_ignore_ascii_case(FIELD));
        match (&self.0, given.next(), given.next()) {
            (Some(token), Some(only), None) => is_same(only.value, token),
            _ => false,
        }
    }
}

/// Whether the request gets debug information.
pub(crate) fn asked(token: Option<&Token>, head: &RequestHead) -> DebugRequest {
    match token {
        None => DebugRequest::Disabled,
        Some(token) if token.is_shown_by(head) => DebugRequest::Trusted,
        Some(_) => DebugRequest::Untrusted,
    }
}

/// Takes the same time for every `given` of the same length, so that timing reveals nothing about a partial match.
/// `token` is not empty.
fn is_same(given: &[u8], token: &[u8]) -> bool {
    let mut differs = given.len() ^ token.len();
    for (byte, other) in given.iter().zip(token.iter().cycle()) {
        differs |= usize::from(byte ^ other);
    }
    black_box(differs) == 0
}

impl Facts<'_> {
    /// The values at the time when the head of the response is sent.
    pub(crate) fn fields(&self, progress: &Progress) -> Fields {
        let now = Instant::now();
        let upstream = progress
            .times
            .sent_at
            .map(|sent| progress.times.first_byte_at.unwrap_or(now).saturating_duration_since(sent));
        let mut timing = String::new();
        let queue = self.cluster.as_ref().map(|_| progress.times.queue);
        let total = Some(now.saturating_duration_since(self.clock));
        for (name, took) in
            [("queue", queue), ("connect", progress.times.connect), ("upstream", upstream), ("total", total)]
        {
            push_timing(&mut timing, name, took);
        }
        let endpoint = progress.endpoint.as_ref();
        let path = progress.path.filter(|_| progress.times.sent_at.is_some()).map(BodyPath::word);
        let mut facts = format!("retries={}", progress.retries);
        for (name, value) in [
            ("path", path),
            ("route", self.route),
            ("cluster", self.cluster.as_deref()),
            ("endpoint", endpoint.map(|endpoint| endpoint.label.as_str())),
            ("request_id", std::str::from_utf8(&self.request_id).ok()),
        ] {
            push_fact(&mut facts, name, value);
        }
        Fields { timing, facts }
    }
}

impl Fields {
    /// Names and values, as sent.
    pub(crate) fn each(&self) -> [(&[u8], &[u8]); 2] {
        [(b"Server-Timing", self.timing.as_bytes()), (b"X-Sluice-Debug", self.facts.as_bytes())]
    }
}

/// A metric of Server-Timing, in milliseconds (W3C Server Timing).
fn push_timing(timing: &mut String, name: &str, took: Option<Duration>) {
    if let Some(took) = took {
        let separator = if timing.is_empty() { "" } else { ", " };
        // Writing into a String cannot fail.
        let _ = write!(timing, "{separator}{name};dur={:.3}", took.as_secs_f64() * 1e3);
    }
}

/// A member of a dictionary with a string value (RFC 8941 section 3.3.3). Names are the operator's and may be any text.
fn push_fact(facts: &mut String, name: &str, value: Option<&str>) {
    let Some(value) = value else {
        return;
    };
    let _ = write!(facts, ", {name}=\"");
    for char in value.chars() {
        match char {
            '"' | '\\' => facts.extend(['\\', char]),
            ' '..='~' => facts.push(char),
            _ => facts.push('?'),
        }
    }
    facts.push('"');
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use sluice_http::HeadLimits;

    use super::*;

    const TOKEN: &[u8] = b"0123456789abcdef";

    fn head(fields: &str) -> RequestHead {
        let limits = HeadLimits { head_bytes_max: 4096, headers_max: 50, target_bytes_max: 100 };
        let mut head = RequestHead::new();
        head.parse(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes(), &limits).unwrap();
        head
    }

    #[test]
    fn only_the_complete_token_in_one_field_is_accepted() {
        let token = Token(Some(TOKEN.to_vec()));
        let good = "X-SLUICE-debug: 0123456789abcdef\r\n";
        for (fields, expected) in [
            (good.to_owned(), DebugRequest::Trusted),
            (String::new(), DebugRequest::Untrusted),
            ("X-Sluice-Debug:\r\n".to_owned(), DebugRequest::Untrusted),
            (good.replace("f\r", "e\r"), DebugRequest::Untrusted),
            (good.replace("f\r", "\r"), DebugRequest::Untrusted),
            (good.replace("f\r", "f0123456789abcdef\r"), DebugRequest::Untrusted),
            (good.to_uppercase(), DebugRequest::Untrusted),
            (good.repeat(2), DebugRequest::Untrusted),
        ] {
            assert_eq!(asked(Some(&token), &head(&fields)), expected, "{fields}");
        }
        assert_eq!(asked(None, &head(good)), DebugRequest::Disabled);
        assert_eq!(asked(Some(&Token(None)), &head(good)), DebugRequest::Untrusted);
    }

    #[test]
    fn any_name_results_in_a_valid_field() {
        let name = "a\"b\\c\u{1f388}\r\n";
        let facts = Facts {
            route: Some(name),
            cluster: None,
            request_id: Rc::from(&b"id"[..]),
            clock: Instant::now(),
        };
        let fields = facts.fields(&Progress::default());
        let [(_, timing), (_, facts)] = fields.each();
        assert_eq!(facts, br#"retries=0, route="a\"b\\c???", request_id="id""#);
        assert!(timing.starts_with(b"total;dur="), "without a cluster there is no queue");
    }

    #[test]
    fn times_are_in_milliseconds() {
        let mut timing = String::new();
        push_timing(&mut timing, "queue", Some(Duration::from_micros(1500)));
        push_timing(&mut timing, "connect", None);
        push_timing(&mut timing, "total", Some(Duration::from_secs(2)));
        assert_eq!(timing, "queue;dur=1.500, total;dur=2000.000");
    }
}
