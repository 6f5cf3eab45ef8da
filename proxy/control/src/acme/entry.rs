//! One managed name: its last result, and the next attempt. Pure: time and random numbers are passed in.

use sluice_config as config;
use sluice_core::metrics::Row;
use sluice_core::tls::Certificate;

use super::failure::{Failure, Kind};
use super::schedule::{advised_ms, pause_ms, renewal_ms};
use super::window::{Advice, Window};

/// Retry delay while another sluice process holds the lock, in milliseconds.
const BUSY_MS: u64 = 2000;
const HOUR_MS: u64 = 3_600_000;
/// Minimum time between two certificates of a name because of an authority's advice, in milliseconds. Protects
/// authorities that always advise to renew at once.
const ADVISED_APART_MS: u64 = HOUR_MS;
/// Range of the interval between requests for advice, in milliseconds.
const ADVICE_MS: (u64, u64) = (60_000, 24 * HOUR_MS);
/// Interval for an authority that gives no advice or does not respond.
const NO_ADVICE_MS: u64 = 6 * HOUR_MS;

/// One name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Time of the next attempt, in milliseconds of Unix time.
    pub(super) next_ms: u64,
    /// Whether an attempt or a request about it is running.
    pub(super) is_running: bool,
    /// Whether the configuration lists it; other names are on-demand.
    pub(super) is_listed: bool,
    /// Whether an on-demand name is approved: asked before each certificate.
    pub(super) is_allowed: bool,
    /// When to ask the authority for advice next; `None` without a certificate.
    pub(super) look_ms: Option<u64>,
    /// The last advice. With it, the authority knows what a new certificate replaces.
    pub(super) window: Option<Window>,
    /// Validity of the certificate, in milliseconds of Unix time.
    valid_ms: (u64, u64),
    /// When this process obtained it; 0 if it did not.
    issued_ms: u64,
    failures: u32,
    failure: Option<String>,
}

impl Entry {
    /// An entry for a name, with its certificate if it has one.
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

    /// Whether an attempt is due.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        !self.is_running && self.next_ms <= now_ms
    }

    /// Records a new certificate.
    pub(super) fn succeed(
        &mut self,
        certificate: &Certificate,
        config: &config::Acme,
        (now_ms, luck): (u64, f64),
    ) {
        *self = Self::new(Some(certificate), self.is_listed, config, (now_ms, luck));
        self.issued_ms = now_ms;
    }

    /// Records the authority's advice, or that it has none.
    pub(super) fn advise(&mut self, advice: Option<Advice>, (now_ms, luck): (u64, f64)) {
        let (least, most) = ADVICE_MS;
        let again_ms = advice.map_or(NO_ADVICE_MS, |advice| advice.again_ms.clamp(least, most));
        self.look_ms = Some(now_ms.saturating_add(again_ms));
        let Some(Advice { window, .. }) = advice else { return };
        let (begin_ms, end_ms) = self.valid_ms;
        // A window that was open before the certificate was issued is ignored; a window that has passed means renew
        // now.
        let is_sound =
            window.start_ms <= window.end_ms && (window.start_ms >= begin_ms || window.end_ms <= now_ms);
        // Failures have their own back-off, and the time chosen in a window stays.
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

    /// Records a failure; returns whether it differs from the last one.
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
        // The authority may have refused the order because of the certificate it replaces.
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

    /// The entry as the status page shows it.
    pub(super) fn row(&self) -> Row {
        Row { next_ms: self.next_ms, failure: self.failure.clone() }
    }
}
