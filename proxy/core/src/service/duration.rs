//! Durations in the format of Go (`1m30s`, `500ms`), which scripts for kamal-proxy use.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MICROSECOND: i64 = 1_000;
const MILLISECOND: i64 = 1_000 * MICROSECOND;
const SECOND: i64 = 1_000 * MILLISECOND;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;

/// Nanoseconds, possibly negative. In JSON a number of them, as in kamal-proxy's state; text is accepted as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(pub i64);

/// Why text is not a duration, in the words of Go's `time.ParseDuration`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// not a duration
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// a number without a unit
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// an unknown unit
    #[error("time: unknown unit {0:?} in duration {1:?}")]
    UnknownUnit(String, String),
}

impl GoDuration {
    /// A number of whole seconds.
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds * SECOND)
    }

    /// A number of whole milliseconds.
    pub const fn from_millis(milliseconds: i64) -> Self {
        Self(milliseconds * MILLISECOND)
    }

    /// The time to wait; zero if it is negative.
    pub fn to_std(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0).unwrap_or(0))
    }

    /// Milliseconds, rounded up; 0 if it is negative.
    pub fn as_millis(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0).div_ceil(MILLISECOND.unsigned_abs())
    }
}

impl FromStr for GoDuration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let invalid = || DurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: i128 = 0;
        while !rest.is_empty() {
            let (part, after) = part(rest, text)?;
            total = total.checked_add(part).ok_or_else(invalid)?;
            rest = after;
        }
        let signed = if negative { -total } else { total };
        i64::try_from(signed).map(Self).map_err(|_| invalid())
    }
}

/// One number with its unit, in nanoseconds, and the rest of the text; `whole` is for the message.
fn part<'a>(text: &'a str, whole: &str) -> Result<(i128, &'a str), DurationError> {
    let invalid = || DurationError::Invalid(whole.to_owned());
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (integer, rest) = text.split_at(digits(text));
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => after.split_at(digits(after)),
        None => ("", rest),
    };
    if integer.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let length = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(length);
    let scale = match unit {
        "" => return Err(DurationError::MissingUnit(whole.to_owned())),
        "ns" => 1,
        // The micro sign and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return Err(DurationError::UnknownUnit(unit.to_owned(), whole.to_owned())),
    };
    let scale = i128::from(scale);
    let integer: i128 = if integer.is_empty() { 0 } else { integer.parse().map_err(|_| invalid())? };
    // Fractions of a nanosecond are dropped; further digits are below a nanosecond in every unit.
    let fraction = &fraction[..fraction.len().min(18)];
    let tenths = 10_i128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let fraction: i128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| invalid())? };
    let nanos = integer.checked_mul(scale).ok_or_else(invalid)?;
    Ok((nanos + fraction * scale / tenths, rest))
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let small = |f: &mut fmt::Formatter<'_>, unit: i64, name: &str| {
            write_decimal(f, nanos, unit.unsigned_abs())?;
            f.write_str(name)
        };
        match i64::try_from(nanos).unwrap_or(i64::MAX) {
            0 => f.write_str("0s"),
            ..MICROSECOND => small(f, 1, "ns"),
            MICROSECOND..MILLISECOND => small(f, MICROSECOND, "\u{b5}s"),
            MILLISECOND..SECOND => small(f, MILLISECOND, "ms"),
            _ => {
                let (hour, minute) = (HOUR.unsigned_abs(), MINUTE.unsigned_abs());
                if nanos >= hour {
                    write!(f, "{}h", nanos / hour)?;
                }
                if nanos >= minute {
                    write!(f, "{}m", nanos % hour / minute)?;
                }
                write_decimal(f, nanos % minute, SECOND.unsigned_abs())?;
                f.write_str("s")
            }
        }
    }
}

/// `nanos` in a unit, with as many decimals as needed.
fn write_decimal(f: &mut fmt::Formatter<'_>, nanos: u64, unit: u64) -> fmt::Result {
    write!(f, "{}", nanos / unit)?;
    let rest = nanos % unit;
    if rest == 0 {
        return Ok(());
    }
    let width = usize::try_from(unit.ilog10()).unwrap_or(0);
    write!(f, ".{}", format!("{rest:0width$}").trim_end_matches('0'))
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("nanoseconds, or a duration such as \"30s\"")
            }

            fn visit_i64<E: de::Error>(self, nanos: i64) -> Result<GoDuration, E> {
                Ok(GoDuration(nanos))
            }

            fn visit_u64<E: de::Error>(self, nanos: u64) -> Result<GoDuration, E> {
                i64::try_from(nanos).map(GoDuration).map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_what_go_parses() {
        for (text, nanos) in [
            ("0", 0),
            ("30s", 30 * SECOND),
            ("1m30s", 90 * SECOND),
            ("500ms", 500 * MILLISECOND),
            ("1.5h", 90 * MINUTE),
            (".5s", 500 * MILLISECOND),
            ("-2s", -2 * SECOND),
            ("+5us", 5 * MICROSECOND),
            ("5\u{b5}s", 5 * MICROSECOND),
            ("1h0m0.000000001s", HOUR + 1),
            ("1.s", SECOND),
        ] {
            assert_eq!(text.parse(), Ok(GoDuration(nanos)), "{text}");
        }
    }

    #[test]
    fn errors_use_the_words_of_go() {
        for (text, said) in [
            ("abc", "time: invalid duration \"abc\""),
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            (".s", "time: invalid duration \".s\""),
            ("5", "time: missing unit in duration \"5\""),
            ("5x", "time: unknown unit \"x\" in duration \"5x\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
        ] {
            assert_eq!(text.parse::<GoDuration>().unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn formats_like_go() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (300 * MILLISECOND, "300ms"),
            (2_200 * MICROSECOND, "2.2ms"),
            (30 * SECOND, "30s"),
            (90 * SECOND, "1m30s"),
            (5 * MINUTE + SECOND / 1000, "5m0.001s"),
            (HOUR, "1h0m0s"),
            (-3 * SECOND / 2, "-1.5s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(GoDuration(nanos).to_string(), text);
        }
    }

    #[test]
    fn waits_are_whole_milliseconds_and_never_negative() {
        assert_eq!(GoDuration(1).as_millis(), 1);
        assert_eq!(GoDuration(-SECOND).as_millis(), 0);
        assert_eq!(GoDuration(-SECOND).to_std(), Duration::ZERO);
        assert_eq!(serde_json::from_str::<GoDuration>("\"2s\"").unwrap(), GoDuration::from_secs(2));
        assert_eq!(serde_json::to_string(&GoDuration::from_millis(2)).unwrap(), "2000000");
    }

    proptest! {
        #[test]
        fn a_formatted_duration_parses_back(nanos in (i64::MIN + 1)..i64::MAX) {
            let text = GoDuration(nanos).to_string();
            prop_assert_eq!(text.parse(), Ok(GoDuration(nanos)));
        }

        #[test]
        fn any_text_is_parsed_or_rejected(text in "[-+.0-9hmsnu\u{b5}x]{0,24}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
