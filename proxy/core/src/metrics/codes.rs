//! Exchanges by status code.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::series::bump;

/// Codes that are counted; HTTP has no others (RFC 9110, section 15).
const CODES: RangeInclusive<u16> = 100..=599;

/// One worker's counters, one for each code.
#[derive(Debug)]
pub(super) struct Codes(Box<[AtomicU64]>);

impl Default for Codes {
    fn default() -> Self {
        Self(CODES.map(|_| AtomicU64::new(0)).collect())
    }
}

impl Codes {
    /// Counts an exchange.
    pub(super) fn record(&self, status: u16) {
        if let Some(count) = self.0.get(usize::from(status.wrapping_sub(*CODES.start()))) {
            bump(count, 1);
        }
    }

    /// Adds every code that occurred to `all`.
    pub(super) fn add_to(&self, all: &mut BTreeMap<u16, u64>) {
        for (code, count) in CODES.zip(&self.0) {
            let count = count.load(Relaxed);
            if count > 0 {
                *all.entry(code).or_default() += count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_codes_of_http_are_counted() {
        let codes = Codes::default();
        for status in [0, 99, 100, 200, 200, 599, 600, 999] {
            codes.record(status);
        }
        let mut all = BTreeMap::from([(200, 1)]);
        codes.add_to(&mut all);
        assert_eq!(all, BTreeMap::from([(100, 1), (200, 3), (599, 1)]));
    }
}
