//! When the next attempt for a certificate is made. Pure: time and random numbers are passed in.

use std::time::SystemTime;

use sluice_config as config;

use super::window::Window;

const DAY_MS: u64 = 86_400_000;
/// Share of the renewal margin by which a renewal may be earlier, so that renewals spread out.
const SPREAD: f64 = 0.1;
/// Maximum Retry-After that is respected.
const RETRY_AFTER_MAX_MS: u64 = 7 * DAY_MS;

/// When a certificate of this validity, in seconds of Unix time, is renewed, in milliseconds of Unix time. `luck` is a
/// random number from 0 to 1.
pub(super) fn renewal_ms(not_before_s: i64, not_after_s: i64, config: &config::Acme, luck: f64) -> u64 {
    let ms = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1000);
    let (begin, end) = (ms(not_before_s), ms(not_after_s));
    let lifetime = end.saturating_sub(begin);
    let margin = match config.renew_before_days {
        0 => lifetime / 3,
        days => days.saturating_mul(DAY_MS),
    };
    let earlier = (margin as f64 * SPREAD * luck) as u64;
    // A margin as long as the lifetime would renew the certificate endlessly.
    end.saturating_sub(margin.saturating_add(earlier).min(lifetime / 10 * 9))
}

/// A time in the window that an authority advises. `luck` is a random number from 0 to 1.
pub(super) fn advised_ms(window: Window, luck: f64) -> u64 {
    let span = window.end_ms.saturating_sub(window.start_ms);
    window.start_ms.saturating_add((span as f64 * luck) as u64)
}

/// Delay after this many failures in a row, in milliseconds: doubled each time, and at least what the authority
/// requests. `luck` is a random number from 0 to 1.
pub(super) fn pause_ms(failures: u32, wish_ms: Option<u64>, config: &config::Acme, luck: f64) -> u64 {
    let doubled = 1u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX);
    let pause = config.retry_first_ms.saturating_mul(doubled).min(config.retry_max_ms);
    // Varied by up to ten percent in both directions.
    let pause = (pause as f64 * (0.9 + 0.2 * luck)) as u64;
    pause.max(wish_ms.unwrap_or(0).min(RETRY_AFTER_MAX_MS))
}

/// Milliseconds of Unix time.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
