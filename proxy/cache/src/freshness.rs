//! How old a response is, and how long it may be used (RFC 9111 section 4.2).

use serde::{Deserialize, Serialize};
use sluice_http::{ResponseHead, read_http_date};

use super::directives::{Directives, seconds};

/// Statuses of responses that may be used for a while although they do not say so (RFC 9110 section 15.1).
const BY_DEFAULT: [u16; 12] = [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501];
/// The part of the time since its last change for which a response is taken to stay as it is (section 4.2.2).
const HEURISTIC_PART: u64 = 10;

/// A step back of the clock that does not count, in milliseconds.
const CLOCK_STEP_MS: u64 = 10_000;

/// When a response was asked for and received, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeTimes {
    /// When the request was sent.
    pub asked_ms: u64,
    /// When the head of the response arrived.
    pub received_ms: u64,
}

/// The times of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Times {
    /// Its age when it arrived, in milliseconds.
    pub(crate) initial_ms: u64,
    /// When it arrived, in milliseconds since 1970.
    pub(crate) received_ms: u64,
    /// For how long it is fresh, from its generation on, in milliseconds.
    pub(crate) lifetime_ms: u64,
    /// Whether it says so itself.
    pub(crate) is_explicit: bool,
}

impl Times {
    /// The times of a response with these directives; `heuristic_ms` is the longest lifetime of one that has none.
    pub(crate) fn of(
        head: &ResponseHead,
        directives: &Directives,
        when: ExchangeTimes,
        heuristic_ms: u64,
    ) -> Self {
        let received_s = when.received_ms / 1000;
        let date_s = only(head, b"date").and_then(date).unwrap_or(received_s);
        let apparent_ms = received_s.saturating_sub(date_s).saturating_mul(1000);
        let delay_ms = when.received_ms.saturating_sub(when.asked_ms);
        let stated_ms = age_s(head).saturating_mul(1000).saturating_add(delay_ms);
        let (lifetime_ms, is_explicit) = match explicit_s(head, directives, date_s) {
            Some(lifetime) => (lifetime.saturating_mul(1000), true),
            None => (heuristic(head, directives, date_s).min(heuristic_ms), false),
        };
        Self {
            initial_ms: apparent_ms.max(stated_ms),
            received_ms: when.received_ms,
            lifetime_ms,
            is_explicit,
        }
    }

    /// How old it is, in milliseconds (section 4.2.3).
    pub(crate) fn age_ms(&self, now_ms: u64) -> u64 {
        if self.received_ms > now_ms.saturating_add(CLOCK_STEP_MS) {
            // The clock was set back, and nobody knows for how long it has been here.
            return u64::MAX;
        }
        self.initial_ms.saturating_add(now_ms.saturating_sub(self.received_ms))
    }

    /// How long it has been stale, in milliseconds; `None` while it is fresh.
    pub(crate) fn stale_ms(&self, now_ms: u64) -> Option<u64> {
        let age = self.age_ms(now_ms);
        (age >= self.lifetime_ms).then(|| age - self.lifetime_ms)
    }
}

/// How long a response says that it is fresh, in seconds.
pub(crate) fn explicit_s(head: &ResponseHead, directives: &Directives, date_s: u64) -> Option<u64> {
    if let Some(lifetime) = directives.lifetime() {
        return Some(lifetime);
    }
    if directives.is_targeted || head.get(b"expires").is_none() {
        return None;
    }
    // One that cannot be read has passed (section 5.3).
    Some(only(head, b"expires").and_then(date).map_or(0, |expires| expires.saturating_sub(date_s)))
}

/// In milliseconds.
fn heuristic(head: &ResponseHead, directives: &Directives, date_s: u64) -> u64 {
    if !directives.public && !BY_DEFAULT.contains(&head.status()) {
        return 0;
    }
    let modified_s = only(head, b"last-modified").and_then(date);
    modified_s.map_or(0, |modified| date_s.saturating_sub(modified).saturating_mul(1000) / HEURISTIC_PART)
}

/// Whether a response with this status may be stored although it does not say so.
pub(crate) fn is_by_default(status: u16) -> bool {
    BY_DEFAULT.contains(&status)
}

/// Age as sent, in seconds. One that cannot be read, or that is there twice, is beyond any lifetime: nobody knows how
/// old the response is.
fn age_s(head: &ResponseHead) -> u64 {
    match (head.get(b"age"), only(head, b"age")) {
        (None, _) => 0,
        (Some(_), Some(age)) => seconds(age).unwrap_or(u64::MAX),
        (Some(_), None) => u64::MAX,
    }
}

fn date(value: &[u8]) -> Option<u64> {
    read_http_date(value)
}

fn only<'h>(head: &'h ResponseHead, name: &[u8]) -> Option<&'h [u8]> {
    let mut fields = head.fields().filter(|field| field.name.eq_ignore_ascii_case(name));
    let first = fields.next()?;
    fields.next().is_none().then_some(first.value)
}
