//! Numbers that count time or bytes: `5s`, `1m30s`, `64k`.
//!
//! In the tables such a key is named with its unit (`response_timeout_ms`). Users write it without
//! (`response_timeout: 5s`). The name with the unit is still read; there a plain number will do.

use super::shape::Shape;

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;

/// Units of time, the largest first, in milliseconds.
const TIMES: [(&str, u64); 5] =
    [("d", DAY_MS), ("h", 60 * MINUTE_MS), ("m", MINUTE_MS), ("s", 1000), ("ms", 1)];

/// Units of size, the largest first, in bytes: powers of 1024.
const SIZES: [(&str, u64); 5] = [("t", 1 << 40), ("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10), ("b", 1)];

/// What the number at a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Milliseconds,
    Seconds,
    Days,
    Bytes,
}

/// A key that counts something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) unit: Unit,
    /// Whether the key was written without its unit, so that the value must have one.
    pub(super) needs_unit: bool,
}

impl Unit {
    /// What the key counts by its name in the tables, and its name without the unit.
    pub(super) fn of(key: &str) -> Option<(Self, String)> {
        let suffixes = [("_ms", Self::Milliseconds), ("_days", Self::Days), ("_s", Self::Seconds)];
        let time =
            suffixes.iter().find_map(|(suffix, unit)| Some((*unit, key.strip_suffix(suffix)?.to_owned())));
        time.or_else(|| {
            let (before, after) = key.split_once("_bytes")?;
            (after.is_empty() || after.starts_with('_')).then(|| (Self::Bytes, format!("{before}{after}")))
        })
    }

    /// What a plain number counts, for a message.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Milliseconds => "milliseconds",
            Self::Seconds => "seconds",
            Self::Days => "days",
            Self::Bytes => "bytes",
        }
    }

    /// `a time` or `a size`.
    pub(super) fn kind(self) -> &'static str {
        if self == Self::Bytes { "a size" } else { "a time" }
    }

    /// The number that a text comes to, in this unit.
    pub(super) fn read(self, text: &str) -> Option<u64> {
        let units: &[_] = if self == Self::Bytes { &SIZES } else { &TIMES };
        let (mut rest, mut sum) = (text, 0_u64);
        while !rest.is_empty() {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, after) = rest.split_at(digits);
            let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (name, after) = after.split_at(letters);
            let (_, factor) = units.iter().find(|(unit, _)| self.is_called(unit, name))?;
            sum = sum.checked_add(number.parse::<u64>().ok()?.checked_mul(*factor)?)?;
            rest = after;
        }
        let size = self.size();
        (!text.is_empty() && sum % size == 0).then_some(sum / size)
    }

    /// Sizes may be written as `64k`, `64K`, `64kb` or `64KiB`.
    fn is_called(self, unit: &str, name: &str) -> bool {
        if self != Self::Bytes {
            return unit == name;
        }
        let name = name.to_ascii_lowercase();
        name == unit || unit != "b" && name.strip_prefix(unit).is_some_and(|rest| matches!(rest, "b" | "ib"))
    }

    /// The text for a number in this unit: one number with the largest unit that divides it.
    pub(super) fn write(self, number: u64) -> String {
        let units: &[_] = if self == Self::Bytes { &SIZES } else { &TIMES };
        if number == 0 {
            return "0".to_owned();
        }
        let Some(total) = number.checked_mul(self.size()) else {
            let own = units.iter().find(|(_, factor)| *factor == self.size());
            return format!("{number}{}", own.map_or("", |(unit, _)| unit));
        };
        // A day is longer than people expect in a timeout: 24h.
        let fits = |(unit, factor): &&(&str, u64)| {
            total % factor == 0 && (*unit != "d" || total > *factor || self == Self::Days)
        };
        let (unit, factor) = units.iter().find(fits).unwrap_or(&("", 1));
        format!("{}{unit}", total / factor)
    }

    /// Of one, in milliseconds or bytes.
    fn size(self) -> u64 {
        match self {
            Self::Milliseconds | Self::Bytes => 1,
            Self::Seconds => 1000,
            Self::Days => DAY_MS,
        }
    }

    /// A regular expression for the texts that are read.
    pub(super) fn pattern(self) -> &'static str {
        match self {
            Self::Bytes => "^0$|^([0-9]+([bB]|[kKmMgGtT]([iI]?[bB])?))+$",
            _ => "^0$|^([0-9]+(ms|s|m|h|d))+$",
        }
    }

    /// What may stand at the key where a number may by its table.
    pub(super) fn shape(self, shape: &Shape, needs_unit: bool) -> Shape {
        match shape {
            Shape::Integer(least, most) => {
                let number = if !needs_unit { Some(Shape::Integer(*least, *most)) } else { None };
                let zero = (needs_unit && *least == 0).then(|| Shape::OneOf(vec![0.into()]));
                let text = Shape::Matching(self.pattern());
                Shape::AnyOf(number.into_iter().chain(zero).chain([text]).collect())
            }
            Shape::AnyOf(shapes) => {
                Shape::AnyOf(shapes.iter().map(|shape| self.shape(shape, needs_unit)).collect())
            }
            other => other.clone(),
        }
    }
}

/// Whether two names stand for one key, one of them with its unit.
pub(super) fn is_same_key(one: &str, other: &str) -> bool {
    let bare = |name: &str| Unit::of(name).map(|(_, bare)| bare);
    one == other || bare(one).as_deref() == Some(other) || bare(other).as_deref() == Some(one)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_lose_their_unit() {
        for (key, expected) in [
            ("response_timeout_ms", Some((Unit::Milliseconds, "response_timeout"))),
            ("max_age_s", Some((Unit::Seconds, "max_age"))),
            ("renew_before_days", Some((Unit::Days, "renew_before"))),
            ("buffer_memory_bytes", Some((Unit::Bytes, "buffer_memory"))),
            ("head_bytes_max", Some((Unit::Bytes, "head_max"))),
            ("headers_max", None),
            ("workers", None),
        ] {
            let expected = expected.map(|(unit, name)| (unit, name.to_owned()));
            assert_eq!(Unit::of(key), expected, "{key}");
        }
        assert!(
            is_same_key("time_ms", "time") && is_same_key("time", "time_ms") && !is_same_key("time", "times")
        );
    }

    #[test]
    fn texts_are_read() {
        for (unit, text, expected) in [
            (Unit::Milliseconds, "250ms", Some(250)),
            (Unit::Milliseconds, "5s", Some(5000)),
            (Unit::Milliseconds, "1m30s", Some(90_000)),
            (Unit::Milliseconds, "24h", Some(DAY_MS)),
            (Unit::Seconds, "365d", Some(31_536_000)),
            (Unit::Seconds, "1ms", None),
            (Unit::Days, "36h", None),
            (Unit::Bytes, "64k", Some(65_536)),
            (Unit::Bytes, "64KiB", Some(65_536)),
            (Unit::Bytes, "20MB", Some(20 << 20)),
            (Unit::Bytes, "7b", Some(7)),
            (Unit::Bytes, "7bb", None),
            (Unit::Bytes, "5s", None),
            (Unit::Milliseconds, "64k", None),
            (Unit::Milliseconds, "5", None),
            (Unit::Milliseconds, "5 s", None),
            (Unit::Milliseconds, "-5s", None),
            (Unit::Milliseconds, "1.5s", None),
            (Unit::Milliseconds, "", None),
            (Unit::Milliseconds, "s", None),
            (Unit::Bytes, "99999999999999t", None),
        ] {
            assert_eq!(unit.read(text), expected, "{text:?} in {unit:?}");
        }
    }

    #[test]
    fn numbers_are_written_with_the_largest_unit_that_divides_them() {
        for (unit, number, expected) in [
            (Unit::Milliseconds, 0, "0"),
            (Unit::Milliseconds, 1500, "1500ms"),
            (Unit::Milliseconds, 60_000, "1m"),
            (Unit::Milliseconds, DAY_MS, "24h"),
            (Unit::Seconds, 31_536_000, "365d"),
            (Unit::Days, 1, "1d"),
            (Unit::Bytes, 65_536, "64k"),
            (Unit::Bytes, 1000, "1000b"),
            (Unit::Days, u64::MAX, "18446744073709551615d"),
        ] {
            assert_eq!(unit.write(number), expected);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(number in 0..1_u64 << 30, which in 0..4_usize) {
            let unit = [Unit::Milliseconds, Unit::Seconds, Unit::Days, Unit::Bytes][which];
            let text = unit.write(number);
            prop_assert!(number == 0 || unit.read(&text) == Some(number), "{}", text);
        }
    }
}
