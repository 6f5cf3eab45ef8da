//! One response that may be used again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluice_http::{HeadLimits, ResponseHead, Validators, read_http_date};

use super::asked::Caller;
use super::body::Body;
use super::directives::{Directives, Wishes};
use super::freshness::Times;
use super::room::Room;
use super::vary::Vary;

/// What a response takes in addition to its bytes: its fields, times and places in tables, roughly.
const OVERHEAD_BYTES: usize = 1024;
/// For how long a response without a validator must be of use to be written to a disk.
const WORTH_FILE_MS: u64 = 10_000;
/// A response that is fresh for longer is written anew when it is validated.
const RENEWAL_MS: u64 = 60_000;
/// Limits of a head that was accepted before.
const LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: usize::MAX, headers_max: usize::MAX, target_bytes_max: usize::MAX };

/// A stored response: complete, with the fields that every client may get.
#[derive(Debug)]
pub struct StoredResponse {
    head: ResponseHead,
    body: Body,
    pub(crate) vary: Vary,
    pub(crate) times: Times,
    pub(crate) rules: Rules,
    /// Last-Modified, in seconds since 1970: read once, and not with each hit.
    modified_s: Option<u64>,
    /// Words by which it can be purged.
    pub(crate) tags: Vec<Vec<u8>>,
    /// Bytes that it takes.
    bytes: usize,
    /// Held as long as anybody has the body.
    room: Option<Arc<Room>>,
}

/// What it says about its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rules {
    /// It is validated before each use.
    pub(crate) asks_each_time: bool,
    /// It is never used when it is stale, whatever has happened.
    pub(crate) is_strict: bool,
    /// Like that, unless it allows it for a time.
    pub(crate) is_strict_by_default: bool,
    /// Requests with credentials may get it.
    pub(crate) is_for_all: bool,
    /// Requests with cookies may get it: it says so itself, or for how long it may be used.
    pub(crate) is_for_cookies: bool,
    /// How long it may be used while it is validated, in milliseconds; `None` if it does not say.
    pub(crate) while_revalidate_ms: Option<u64>,
    /// How long it may be used in place of an error, in milliseconds; `None` if it does not say.
    pub(crate) if_error_ms: Option<u64>,
}

impl Rules {
    pub(crate) fn of(directives: &Directives, is_explicit: bool) -> Self {
        let ms = |time: Option<u64>| time.map(|time| time.saturating_mul(1000));
        Self {
            asks_each_time: directives.no_cache,
            is_strict: directives.must_revalidate || directives.proxy_revalidate || directives.no_cache,
            is_strict_by_default: directives.shared_max_age.is_some(),
            is_for_all: is_for_all(directives),
            is_for_cookies: is_explicit || directives.public,
            while_revalidate_ms: ms(directives.stale_while_revalidate),
            if_error_ms: ms(directives.stale_if_error),
        }
    }
}

/// RFC 9111 section 3.5.
pub(crate) fn is_for_all(directives: &Directives) -> bool {
    directives.public || directives.must_revalidate || directives.shared_max_age.is_some()
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The response, which is fresh for so long, in milliseconds.
    Fresh(u64),
    /// The response, while somebody asks whether it has changed.
    WhileRevalidate,
    /// The response, once the application has said that it has not changed.
    Validated,
}

impl StoredResponse {
    /// A response from its status, its fields and its body. `None` if the fields are not those of a head.
    pub(crate) fn new<'f>(
        status: u16,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        body: Body,
        facts: (Vary, Times, Rules),
    ) -> Option<Self> {
        let mut text = format!("HTTP/1.1 {status} \r\n").into_bytes();
        for (name, value) in fields {
            line(&mut text, name, value);
        }
        if !matches!(status, 204 | 304) {
            line(&mut text, b"Content-Length", body.len().to_string().as_bytes());
        }
        text.extend_from_slice(b"\r\n");
        let mut head = ResponseHead::new();
        head.parse(&text, &LIMITS).ok()?;
        let (vary, times, rules) = facts;
        let tags = tags(&head);
        let of_head: usize = head.fields().map(|field| field.name.len() + field.value.len() + 64).sum();
        let of_tags: usize = tags.iter().map(|tag| tag.len() + 32).sum();
        let modified_s = head.get(b"last-modified").and_then(read_http_date);
        let bytes = OVERHEAD_BYTES + of_head + of_tags + body.len() + vary.bytes();
        Some(Self { head, body, vary, times, rules, modified_s, tags, bytes, room: None })
    }

    /// Its head: the status, all fields that are stored, and the length of the body.
    pub fn head(&self) -> &ResponseHead {
        &self.head
    }

    /// The head of a response about this one: with another status, without some fields, and with others. `None` if
    /// the others are malformed.
    pub fn head_with(
        &self,
        status: u16,
        is_kept: impl Fn(&[u8]) -> bool,
        others: &[(&[u8], &[u8])],
    ) -> Option<ResponseHead> {
        let mut text = format!("HTTP/1.1 {status} \r\n").into_bytes();
        let kept =
            self.head.fields().filter(|field| is_kept(field.name)).map(|field| (field.name, field.value));
        kept.chain(others.iter().copied()).for_each(|(name, value)| line(&mut text, name, value));
        text.extend_from_slice(b"\r\n");
        let mut head = ResponseHead::new();
        head.parse(&text, &LIMITS).ok().map(|()| head)
    }

    /// The same, with the room that its body takes.
    pub(crate) fn within(self, room: Option<Arc<Room>>) -> Self {
        Self { room, ..self }
    }

    /// The room that its body takes.
    pub(crate) fn room(&self) -> Option<Arc<Room>> {
        self.room.as_ref().map(Arc::clone)
    }

    /// Its body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Its age, in seconds.
    pub fn age_s(&self, now_ms: u64) -> u64 {
        // The longest that is understood (RFC 9111 section 1.2.2).
        (self.times.age_ms(now_ms) / 1000).min(1 << 31)
    }

    /// What a request gets that names this content already.
    pub fn validators(&self) -> Validators<'_> {
        Validators { etag: self.head.get(b"etag").unwrap_or_default(), modified_s: self.modified_s }
    }

    /// What tells a request from those that get another response of the same resource.
    pub fn signature(&self, caller: &Caller<'_>) -> Vec<u8> {
        self.vary.signature(caller)
    }

    /// Whether it may be given to a request. Somebody whom the application may know gets only what is for all.
    pub(crate) fn fits(&self, caller: &Caller<'_>) -> bool {
        (!caller.has_credentials || self.rules.is_for_all)
            && (self.rules.is_for_cookies || caller.request.get(b"cookie").is_none())
            && self.vary.fits(caller)
    }

    /// How it may be used now. `wishes` is what the request says, if that counts.
    pub(crate) fn usable(&self, now_ms: u64, wishes: Option<&Wishes>) -> Use {
        if self.rules.asks_each_time || wishes.is_some_and(|wishes| wishes.no_cache) {
            return Use::Validated;
        }
        let age_ms = self.times.age_ms(now_ms);
        if let Some(wishes) = wishes {
            let least_ms = wishes.min_fresh.unwrap_or(0) * 1000;
            let is_too_old = wishes.max_age.is_some_and(|most| age_ms > most * 1000 || most == 0);
            let ends_soon = least_ms > 0 && self.times.lifetime_ms.saturating_sub(age_ms) < least_ms;
            if is_too_old || ends_soon {
                return Use::Validated;
            }
        }
        let Some(stale_ms) = self.times.stale_ms(now_ms) else {
            return Use::Fresh(self.times.lifetime_ms - age_ms);
        };
        if self.rules.is_strict {
            return Use::Validated;
        }
        let is_wished =
            wishes.and_then(|wishes| wishes.max_stale).is_some_and(|most| stale_ms <= most * 1000);
        if is_wished && !self.rules.is_strict_by_default {
            return Use::Fresh(0);
        }
        match self.rules.while_revalidate_ms {
            Some(most) if stale_ms < most => Use::WhileRevalidate,
            _ => Use::Validated,
        }
    }

    /// Whether a request may get it that came before it arrived, and has waited for it: what the application would say to
    /// that request is no newer, even if it took longer than the response may be used. Not if it is for one use alone.
    pub fn answers_wait(&self, since_ms: u64) -> bool {
        !self.rules.asks_each_time && self.times.lifetime_ms > 0 && self.times.received_ms >= since_ms
    }

    /// Whether it may be used in place of a failure now. `default_ms` is for how long if it does not say.
    pub fn replaces_failure(&self, now_ms: u64, default_ms: u64) -> bool {
        let Some(stale_ms) = self.times.stale_ms(now_ms) else { return !self.rules.asks_each_time };
        let by_default = if self.rules.is_strict_by_default { 0 } else { default_ms };
        !self.rules.is_strict && stale_ms < self.rules.if_error_ms.unwrap_or(by_default)
    }

    /// Whether it may be used in place of an error that the application itself has sent.
    pub fn replaces_error(&self, now_ms: u64) -> bool {
        self.rules.if_error_ms.is_some() && self.replaces_failure(now_ms, 0)
    }

    /// Whether clients get a cookie with it.
    pub(crate) fn sets_cookie(&self) -> bool {
        self.head.get(b"set-cookie").is_some() || self.head.get(b"set-cookie2").is_some()
    }

    /// Whether it is of use for long enough to be written to a disk.
    pub(crate) fn is_worth_file(&self) -> bool {
        let has_validator = self.head.get(b"etag").is_some() || self.head.get(b"last-modified").is_some();
        has_validator || self.longest_ms() >= WORTH_FILE_MS
    }

    /// Whether it is another one after a 304 that has changed nothing but its times, for so short that the other one may
    /// stay on a disk: after a restart, the application is asked once more.
    pub(crate) fn is_short_renewal(&self, old: &Self) -> bool {
        let of_time =
            |name: &[u8]| [&b"date"[..], b"expires"].iter().any(|time| name.eq_ignore_ascii_case(time));
        let fields = |stored: &Self| {
            let fields = stored.head.fields().filter(|field| !of_time(field.name));
            fields.map(|field| (field.name.to_vec(), field.value.to_vec())).collect::<Vec<_>>()
        };
        self.times.lifetime_ms < RENEWAL_MS
            && self.body.number() == old.body.number()
            && self.rules == old.rules
            && fields(self) == fields(old)
    }

    /// For how long it may be used, whatever happens, in milliseconds.
    fn longest_ms(&self) -> u64 {
        let stale = self.rules.while_revalidate_ms.max(self.rules.if_error_ms).unwrap_or(0);
        self.times.lifetime_ms.saturating_add(stale)
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

pub(crate) fn line(text: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    text.extend_from_slice(name);
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
    text.extend_from_slice(b"\r\n");
}

/// The words of Cache-Tag, in a list, and of Surrogate-Key, with spaces between.
fn tags(head: &ResponseHead) -> Vec<Vec<u8>> {
    const TAGS_MAX: usize = 100;
    let of = |name: &'static [u8], is_end: fn(&u8) -> bool| {
        let fields = head.fields().filter(move |field| field.name.eq_ignore_ascii_case(name));
        fields.flat_map(move |field| field.value.split(is_end))
    };
    let tags = of(b"cache-tag", |byte| *byte == b',').chain(of(b"surrogate-key", u8::is_ascii_whitespace));
    let tags = tags.map(<[u8]>::trim_ascii).filter(|tag| !tag.is_empty());
    tags.take(TAGS_MAX).map(<[u8]>::to_vec).collect()
}
