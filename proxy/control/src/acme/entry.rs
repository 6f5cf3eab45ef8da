//! One name that is looked after: what has come of it, and when it is tried next. Pure: the time and the luck are
//! passed in.

use sluice_config as config;
use sluice_core::metrics::Row;
use sluice_core::tls::Certificate;

use super::failure::{Failure, Kind};
use super::schedule::{advised_ms, pause_ms, renewal_ms};
use super::window::{Advice, Window};

/// How long another process of ours is left to it, in milliseconds.
const BUSY_MS: u64 = 2000;
const HOUR_MS: u64 = 3_600_000;
/// The least time between two certificates of a name that an authority's advice leads to, in milliseconds: one that always
/// says "at once" is not asked for ever.
const ADVISED_APART_MS: u64 = HOUR_MS;
/// Within these bounds an authority says how often it is asked for advice, in milliseconds.
const ADVICE_MS: (u64, u64) = (60_000, 24 * HOUR_MS);
/// How often one is asked that has none, or does not answer.
const NO_ADVICE_MS: u64 = 6 * HOUR_MS;

/// One name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// When it is tried next, in milliseconds of Unix time.
    pub(super) next_ms: u64,
    /// Whether something about it is under way.
    pub(super) is_running: bool,
    /// Whether the configuration has it; others are got on demand.
    pub(super) is_listed: bool,
    /// Whether one got on demand may be tried: asked before each certificate.
    pub(super) is_allowed: bool,
    /// When the authority is asked how soon to renew; `None` without a certificate.
    pub(super) look_ms: Option<u64>,
    /// What it has said last. It is known there what a new certificate replaces.
    pub(super) window: Option<Window>,
    /// The certificate's validity, in milliseconds of Unix time.
    valid_ms: (u64, u64),
    /// When it was issued, if it was by this process.
    issued_ms: u64,
    failures: u32,
    failure: Option<String>,
}

impl Entry {
    /// A name with this certificate, if it has one.
    pub(super) fn new(
        certificate: Option<&Certificate>,
        is_listed: bool,
        config: &config::Acme,
        (now_ms, luck): (u64, f64),
    ) -> Self {
        let mut entry = Self { next_ms: now_ms, is_listed, ..Self::default() };
        if let Some(certificate) = certificate {
            let ms = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1000);
            entry.valid_ms = (ms(certificate.not_before), ms(certificate.not_after));
            entry.look_ms = Some(now_ms);
            entry.next_ms = renewal_ms(certificate.not_before, certificate.not_after, config, luck);
        }
        entry
    }

    /// Whether to do something about it now.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        !self.is_running && self.next_ms <= now_ms
    }

    /// There is a certificate.
    pub(super) fn succeed(
        &mut self,
        certificate: &Certificate,
        config: &config::Acme,
        (now_ms, luck): (u64, f64),
    ) {
        *self = Self::new(Some(certificate), self.is_listed, config, (now_ms, luck));
        self.issued_ms = now_ms;
    }

    /// The authority has said when to renew, or has nothing to say.
    pub(super) fn advise(&mut self, advice: Option<Advice>, (now_ms, luck): (u64, f64)) {
        let (least, most) = ADVICE_MS;
        let again_ms = advice.map_or(NO_ADVICE_MS, |advice| advice.again_ms.clamp(least, most));
        self.look_ms = Some(now_ms.saturating_add(again_ms));
        let Some(Advice { window, .. }) = advice else { return };
        let (begin_ms, end_ms) = self.valid_ms;
        // One that is open since before there was a certificate says nothing, but that is over is meant.
        let is_sound =
            window.start_ms <= window.end_ms && (window.start_ms >= begin_ms || window.end_ms <= now_ms);
        // A failure has its own pauses, and the moment that was chosen in a window stays.
        if !is_sound || self.failures > 0 || self.is_running || self.window == Some(window) {
            return;
        }
        self.window = Some(window);
        let last_ms = end_ms - end_ms.saturating_sub(begin_ms) / 10;
        let earliest_ms = match self.issued_ms {
            0 => 0,
            issued_ms => issued_ms + ADVISED_APART_MS,
        };
        self.next_ms = advised_ms(window, luck).max(earliest_ms).min(last_ms);
    }

    /// There is none; whether that is news.
    pub(super) fn fail(
        &mut self,
        failure: &Failure,
        config: &config::Acme,
        (now_ms, luck): (u64, f64),
    ) -> bool {
        self.is_running = false;
        if failure.kind == Kind::Busy {
            self.next_ms = now_ms + BUSY_MS;
            return false;
        }
        self.is_allowed = false;
        // Perhaps it is what the new one was to replace that the authority did not like.
        self.window = None;
        self.failures = self.failures.saturating_add(1);
        let wish = match failure.kind {
            Kind::RateLimited(Some(pause)) => u64::try_from(pause.as_millis()).ok(),
            _ => None,
        };
        self.next_ms = now_ms.saturating_add(pause_ms(self.failures, wish, config, luck));
        let is_news = self.failure.as_ref() != Some(&failure.text);
        self.failure = Some(failure.text.clone());
        is_news
    }

    /// As it is shown.
    pub(super) fn row(&self) -> Row {
        Row { next_ms: self.next_ms, failure: self.failure.clone() }
    }
}
