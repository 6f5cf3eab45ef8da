//! When the next attempt is made.

use std::time::Duration;

use proptest::prelude::*;
use sluice_config::Acme;

use super::super::entry::Entry;
use super::super::failure::{Failure, Kind};
use super::super::schedule::{pause_ms, renewal_ms};
use super::super::window::{Advice, Window};
use super::{acme, certificate};

const DAY_S: i64 = 86_400;
const DAY_MS: u64 = 86_400_000;

#[test]
fn renewal_is_a_third_of_the_lifetime_before_expiry() {
    let at = |days: u64, luck: f64| {
        let acme = Acme { renew_before_days: days, ..acme() };
        renewal_ms(0, 90 * DAY_S, &acme, luck) / DAY_MS
    };
    assert_eq!((at(0, 0.0), at(0, 1.0)), (60, 57));
    assert_eq!((at(20, 0.0), at(20, 1.0)), (70, 68));
    assert_eq!((at(90, 0.0), at(365, 1.0)), (9, 9), "never at once, which would loop");
}

#[test]
fn back_off_doubles_up_to_the_maximum() {
    let pause = |failures| pause_ms(failures, None, &acme(), 0.5);
    assert_eq!([1, 2, 3, 4].map(pause), [60_000, 120_000, 240_000, 480_000]);
    assert_eq!([9, 10, 100, u32::MAX].map(pause), [15_360_000, 21_600_000, 21_600_000, 21_600_000]);
}

#[test]
fn retry_after_is_respected_within_limits() {
    let pause = |wish_ms| pause_ms(1, Some(wish_ms), &acme(), 0.5);
    assert_eq!(pause(1000), 60_000, "an earlier retry is not requested");
    assert_eq!(pause(3 * DAY_MS), 3 * DAY_MS);
    assert_eq!(pause(u64::MAX), 7 * DAY_MS);
}

proptest! {
    #[test]
    fn extreme_numbers_do_not_overflow(
        begin in 0..=i64::MAX / 2000, lifetime in 1..=i64::MAX / 2000, days in 0..=365u64,
        failures in any::<u32>(), luck in 0.0..=1.0,
    ) {
        let acme = Acme { renew_before_days: days, ..acme() };
        let at = renewal_ms(begin, begin + lifetime, &acme, luck);
        let (begin_ms, end_ms) = (begin as u64 * 1000, (begin + lifetime) as u64 * 1000);
        prop_assert!(at >= begin_ms + lifetime as u64 * 100 && at <= end_ms, "{at}");
        let pause = pause_ms(failures, None, &acme, luck);
        prop_assert!((54_000..=23_760_000).contains(&pause), "{pause}");
    }
}

fn advice(start_ms: u64, end_ms: u64) -> Option<Advice> {
    Some(Advice { window: Window { start_ms, end_ms }, again_ms: 6 * 3_600_000 })
}

#[test]
fn authority_advice_sets_the_renewal_time() {
    let certificate = certificate(0, 90 * DAY_S);
    let new = || Entry::new(Some(&certificate), true, &acme(), (DAY_MS, 0.0));
    let mut entry = new();
    assert_eq!((entry.look_ms, entry.next_ms), (Some(DAY_MS), 60 * DAY_MS));
    entry.advise(advice(10 * DAY_MS, 12 * DAY_MS), (DAY_MS, 0.5));
    assert_eq!((entry.look_ms, entry.next_ms), (Some(DAY_MS + DAY_MS / 4), 11 * DAY_MS));
    entry.advise(advice(10 * DAY_MS, 12 * DAY_MS), (2 * DAY_MS, 0.9));
    assert_eq!(entry.next_ms, 11 * DAY_MS, "the chosen time stays");
    // Revoked: the window has passed.
    entry.advise(advice(2 * DAY_MS, 3 * DAY_MS), (4 * DAY_MS, 0.5));
    assert!(entry.is_due(4 * DAY_MS));
    // Never later than a tenth of the lifetime before expiry, whatever the advice.
    entry.advise(advice(200 * DAY_MS, 300 * DAY_MS), (5 * DAY_MS, 0.5));
    assert_eq!(entry.next_ms, 81 * DAY_MS);

    let mut entry = new();
    for unsound in [None, advice(20 * DAY_MS, 10 * DAY_MS)] {
        entry.advise(unsound, (DAY_MS, 0.5));
        assert_eq!((entry.next_ms, entry.window), (60 * DAY_MS, None));
    }
    assert_eq!(entry.look_ms, Some(DAY_MS + DAY_MS / 4));
}

#[test]
fn constant_advice_to_renew_is_followed_once_an_hour() {
    let certificate = certificate(0, 90 * DAY_S);
    let mut entry = Entry::new(None, true, &acme(), (DAY_MS, 0.0));
    entry.succeed(&certificate, &acme(), (DAY_MS, 0.0));
    entry.advise(advice(0, 1), (DAY_MS, 0.5));
    assert_eq!(entry.next_ms, DAY_MS + DAY_MS / 24);
}

#[test]
fn only_a_different_failure_is_reported_again() {
    let mut entry = Entry::new(None, true, &acme(), (1000, 0.5));
    assert!(entry.is_due(1000));
    let mut fail = |text: &str, now_ms| entry.fail(&Failure::new(text), &acme(), (now_ms, 0.5));
    assert!(fail("a", 1000) && !fail("a", 2000) && fail("b", 3000));
    assert_eq!(entry.next_ms, 3000 + 240_000);
    assert!(!entry.is_due(3000) && entry.is_due(243_000));
    assert_eq!(entry.row().failure.as_deref(), Some("b"));
}

#[test]
fn waiting_for_another_process_is_not_a_failure() {
    let mut entry = Entry::new(None, true, &acme(), (0, 0.5));
    entry.is_running = true;
    assert!(!entry.fail(&Failure::busy(), &acme(), (0, 0.5)));
    assert!(entry.next_ms <= 10_000 && entry.row().failure.is_none() && !entry.is_running);
    let limited =
        Failure { kind: Kind::RateLimited(Some(Duration::from_secs(7200))), ..Failure::new("slow") };
    entry.fail(&limited, &acme(), (0, 0.5));
    assert_eq!(entry.next_ms, 7_200_000);
}
