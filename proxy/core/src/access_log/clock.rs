//! Formats times of day as text in UTC and caches the text of the current second. No time zones and no leap seconds
//! (POSIX time).

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The last second of the year 9999: both formats have four digits for the year.
const LAST_SECOND: u64 = 253_402_300_799;

/// Formats times and caches the text of the last second it formatted.
#[derive(Debug, Default)]
pub(super) struct Clock {
    second: Option<u64>,
    rfc3339: String,
    combined: String,
}

impl Clock {
    /// Appends `2026-11-21T10:00:00.042Z` (RFC 3339, milliseconds).
    pub(super) fn rfc3339(&mut self, out: &mut Vec<u8>, time: SystemTime) {
        let millis = self.turn_to(time);
        let digits =
            [b'0' + (millis / 100) as u8, b'0' + (millis / 10 % 10) as u8, b'0' + (millis % 10) as u8];
        out.extend_from_slice(self.rfc3339.as_bytes());
        out.push(b'.');
        out.extend_from_slice(&digits);
        out.push(b'Z');
    }

    /// Appends `21/Nov/2026:10:00:00 +0000` (Apache's `%t` without its brackets).
    pub(super) fn combined(&mut self, out: &mut Vec<u8>, time: SystemTime) {
        self.turn_to(time);
        out.extend_from_slice(self.combined.as_bytes());
    }

    /// Updates both cached texts to the second of `time` and returns its milliseconds.
    fn turn_to(&mut self, time: SystemTime) -> u32 {
        // A clock set before 1970 logs 1970 instead of failing.
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let second = since.as_secs().min(LAST_SECOND);
        if self.second != Some(second) {
            self.second = Some(second);
            self.write(second);
        }
        since.subsec_millis()
    }

    fn write(&mut self, second: u64) {
        let (year, month, day) = civil(second / 86_400);
        let (h, m, s) = (second / 3_600 % 24, second / 60 % 60, second % 60);
        let name = MONTHS[month - 1];
        self.rfc3339 = format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}");
        self.combined = format!("{day:02}/{name}/{year:04}:{h:02}:{m:02}:{s:02} +0000");
    }
}

/// Year, month (1 to 12) and day of a day counted from 1970-01-01, in the Gregorian calendar
/// (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days).
fn civil(days: u64) -> (u64, usize, u64) {
    let days = days + 719_468;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Years start in March here, so that the leap day is the last day of its year.
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = days / 146_097 * 400 + year_of_era + u64::from(month <= 2);
    (year, month as usize, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn both(millis: u64) -> (String, String) {
        let (mut clock, mut a, mut b) = (Clock::default(), Vec::new(), Vec::new());
        let time = UNIX_EPOCH + Duration::from_millis(millis);
        clock.rfc3339(&mut a, time);
        clock.combined(&mut b, time);
        (String::from_utf8_lossy(&a).into(), String::from_utf8_lossy(&b).into())
    }

    #[test]
    fn known_times_are_formatted_correctly() {
        // From `date -u -d @N`.
        for (millis, rfc3339, combined) in [
            (0, "1970-01-01T00:00:00.000Z", "01/Jan/1970:00:00:00 +0000"),
            (951_782_400_007, "2000-02-29T00:00:00.007Z", "29/Feb/2000:00:00:00 +0000"),
            (1_795_255_200_042, "2026-11-21T10:00:00.042Z", "21/Nov/2026:10:00:00 +0000"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z", "28/Feb/2100:23:59:59 +0000"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z", "01/Mar/2100:00:00:00 +0000"),
        ] {
            assert_eq!(both(millis), (rfc3339.into(), combined.into()));
        }
    }

    #[test]
    fn consecutive_days_advance_the_date_by_one() {
        let mut last = civil(0);
        for day in 1..200_000 {
            let (y, m, d) = civil(day);
            let next_day = (y, m, d) == (last.0, last.1, last.2 + 1);
            let next_month = (y, m, d) == (last.0, last.1 + 1, 1) && last.2 >= 28;
            let next_year = (y, m, d) == (last.0 + 1, 1, 1) && (last.1, last.2) == (12, 31);
            assert!(next_day || next_month || next_year, "{last:?} then {y}-{m}-{d}");
            last = (y, m, d);
        }
    }

    #[test]
    fn absurd_clocks_do_not_panic() {
        assert!(both(u64::MAX).0.starts_with("9999-12-31T23:59:59."));
        let mut out = Vec::new();
        Clock::default().rfc3339(&mut out, UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(out, b"1970-01-01T00:00:00.000Z");
    }
}
