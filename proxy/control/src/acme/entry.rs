//! One name that is looked after: what has come of it, and when it is tried next. Pure: the time and the luck are
//! passed in.

use sluice_config as config;
use sluice_core::metrics::Row;
use sluice_core::tls::Certificate;

use super::failure::{Failure, Kind};
use super::schedule::{pause_ms, renewal_ms};

/// How long another process of ours is left to it, in milliseconds.
const BUSY_MS: u64 = 2000;

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
            entry.next_ms = renewal_ms(certificate.not_before, certificate.not_after, config, luck);
        }
        entry
    }

    /// Whether to do something about it now.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        !self.is_running && self.next_ms <= now_ms
    }

    /// There is a certificate.
    pub(super) fn succeed(&mut self, certificate: &Certificate, config: &config::Acme, luck: f64) {
        *self = Self::new(Some(certificate), self.is_listed, config, (0, luck));
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
