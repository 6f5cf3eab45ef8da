//! The counts of a script: parsed from bpftrace's JSON, shown as text, or passed on as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::names;

const BAR_WIDTH: usize = 40;

/// One histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Lower bound (inclusive), upper bound (exclusive), samples; ascending.
    pub buckets: Vec<(u64, u64, u64)>,
}

/// Everything that a script printed, by map and then by key (empty if the map has none).
#[derive(Clone, Debug, Default)]
pub struct Report {
    histograms: BTreeMap<String, BTreeMap<String, Histogram>>,
    values: BTreeMap<String, BTreeMap<String, i64>>,
}

impl Histogram {
    fn read(value: &Value) -> Self {
        let bound = |bucket: &Value, name: &str| bucket[name].as_u64();
        let buckets = value.as_array().into_iter().flatten().filter_map(|bucket| {
            let low = bound(bucket, "min").unwrap_or(0);
            let high = bound(bucket, "max").map_or(low, |max| max.saturating_add(1));
            Some((low, high, bound(bucket, "count")?))
        });
        Self { buckets: buckets.filter(|bucket| bucket.2 > 0).collect() }
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.2).sum()
    }

    /// Number of samples in buckets that start at `bound` or later.
    pub fn from(&self, bound: u64) -> u64 {
        self.buckets.iter().filter(|bucket| bucket.0 >= bound).map(|bucket| bucket.2).sum()
    }

    /// The value below which this percentage of the samples lies: the upper bound of a bucket.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let rank = (self.count() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        self.buckets.iter().find_map(|&(_, high, count)| {
            seen += count;
            (seen >= rank).then_some(high)
        })
    }

    /// The samples in `self` that are not in `before`.
    pub fn since(&self, before: &Self) -> Self {
        let old: BTreeMap<u64, u64> = before.buckets.iter().map(|&(low, _, count)| (low, count)).collect();
        let left = |&(low, high, count): &(u64, u64, u64)| {
            let count = count.saturating_sub(old.get(&low).copied().unwrap_or(0));
            (count > 0).then_some((low, high, count))
        };
        Self { buckets: self.buckets.iter().filter_map(left).collect() }
    }
}

impl Report {
    /// Adds one line of bpftrace; a map printed again replaces the earlier one.
    pub(super) fn add(&mut self, line: &Value) {
        let Some(maps) = line["data"].as_object() else { return };
        for (name, value) in maps {
            let name = name.trim_start_matches('@').to_owned();
            let by_key = |value: &Value| match value {
                Value::Object(keys) => keys.clone(),
                whole => Map::from_iter([(String::new(), whole.clone())]),
            };
            match line["type"].as_str() {
                Some("hist" | "lhist") => {
                    let keys = by_key(value);
                    let read = keys.iter().map(|(key, value)| (key.clone(), Histogram::read(value)));
                    self.histograms.insert(name, read.collect());
                }
                Some("map" | "stats") => {
                    let keys = by_key(value);
                    let read = keys.iter().filter_map(|(key, value)| Some((key.clone(), value.as_i64()?)));
                    self.values.insert(name, read.collect());
                }
                _ => {}
            }
        }
    }

    /// The histogram of a map, all keys together.
    pub fn histogram(&self, name: &str) -> Histogram {
        let mut sum = BTreeMap::<(u64, u64), u64>::new();
        for &(low, high, count) in
            self.histograms.get(name).into_iter().flatten().flat_map(|(_, one)| &one.buckets)
        {
            *sum.entry((low, high)).or_default() += count;
        }
        Histogram { buckets: sum.into_iter().map(|((low, high), count)| (low, high, count)).collect() }
    }

    /// The histogram under one key of a map.
    pub fn keyed(&self, name: &str, key: &str) -> Histogram {
        self.histograms.get(name).and_then(|keys| keys.get(key)).cloned().unwrap_or_default()
    }

    /// The sum of a map of numbers over all its keys.
    pub fn value(&self, name: &str) -> i64 {
        self.values.get(name).into_iter().flatten().map(|(_, value)| value).sum()
    }

    /// The number under one key of a map.
    pub fn value_of(&self, name: &str, key: &str) -> i64 {
        self.values.get(name).and_then(|keys| keys.get(key)).copied().unwrap_or(0)
    }

    /// As text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (name, keys) in &self.histograms {
            for (key, histogram) in keys {
                show(&mut text, &title(name, key), histogram, name.ends_with("_us"));
            }
        }
        for (name, keys) in &self.values {
            // The most expensive first: a list by key would hide what matters.
            let mut keys: Vec<_> = keys.iter().collect();
            keys.sort_by_key(|(_, value)| std::cmp::Reverse(**value));
            for (key, value) in keys {
                let value =
                    if name.ends_with("_us") { time(value.unsigned_abs()) } else { value.to_string() };
                writeln!(text, "{}: {value}", title(name, key)).expect("writing to a String does not fail");
            }
        }
        if text.is_empty() { "no events\n".to_owned() } else { text }
    }

    /// As JSON: maps by name, as printed by bpftrace.
    pub(super) fn json(&self) -> Value {
        let mut maps = Map::new();
        for (name, keys) in &self.histograms {
            let read = |one: &Histogram| {
                let bucket =
                    |&(min, end, count): &(u64, u64, u64)| json!({"min": min, "end": end, "count": count});
                Value::Array(one.buckets.iter().map(bucket).collect())
            };
            maps.insert(name.clone(), unkeyed(keys.iter().map(|(key, one)| (key.clone(), read(one)))));
        }
        for (name, keys) in &self.values {
            maps.insert(name.clone(), unkeyed(keys.iter().map(|(key, value)| (key.clone(), json!(value)))));
        }
        Value::Object(maps)
    }
}

/// An object by key, or the only value of a map without keys.
fn unkeyed(keys: impl Iterator<Item = (String, Value)>) -> Value {
    let mut keys: Map<String, Value> = keys.collect();
    keys.remove("").unwrap_or(Value::Object(keys))
}

fn title(name: &str, key: &str) -> String {
    match key {
        "" => name.to_owned(),
        _ => format!("{name}[{}]", names::key(name, key)),
    }
}

fn show(text: &mut String, title: &str, histogram: &Histogram, micros: bool) {
    let unit = |value: u64| if micros { time(value) } else { value.to_string() };
    let under = |percent| histogram.percentile(percent).map_or("-".to_owned(), unit);
    let line = format!("{title}: {}, half under {}, 99 % under {}", histogram.count(), under(50), under(99));
    writeln!(text, "{line}").expect("writing to a String does not fail");
    let most = histogram.buckets.iter().map(|bucket| bucket.2).max().unwrap_or(1);
    for &(low, high, count) in &histogram.buckets {
        let bar = "@".repeat(usize::try_from(count * BAR_WIDTH as u64 / most).unwrap_or(BAR_WIDTH));
        writeln!(text, "  [{:>7}, {:>7}) {count:>9} |{bar:<BAR_WIDTH$}|", unit(low), unit(high))
            .expect("writing to a String does not fail");
    }
    text.push('\n');
}

/// Microseconds in a readable unit; buckets of powers of two keep their names in the next unit.
pub(super) fn time(us: u64) -> String {
    match us {
        0..1_024 => format!("{us} us"),
        1_024..1_048_576 => format!("{} ms", us / 1_024),
        _ => format!("{} s", us / 1_048_576),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(lines: &[&str]) -> Report {
        let mut report = Report::default();
        for line in lines {
            report.add(&serde_json::from_str(line).expect("the test's own JSON"));
        }
        report
    }

    const WAITS: &str = r#"{"type":"hist","data":{"@wait_us":{"80":[{"min":8,"max":15,"count":3},
        {"min":16,"max":31,"count":0},{"min":32,"max":63,"count":1}],"81":[{"min":8,"max":15,"count":4}]}}}"#;

    #[test]
    fn histograms_are_summed_over_keys() {
        let report = report(&[WAITS]);
        let all = report.histogram("wait_us");
        assert_eq!(all.buckets, [(8, 16, 7), (32, 64, 1)]);
        assert_eq!(
            (all.count(), all.from(32), all.percentile(50), all.percentile(99)),
            (8, 1, Some(16), Some(64))
        );
        assert_eq!(report.keyed("wait_us", "81").count(), 4);
        assert_eq!(report.histogram("none").percentile(50), None);
    }

    #[test]
    fn a_map_printed_again_replaces_the_earlier_one() {
        let first = report(&[WAITS]).histogram("wait_us");
        let later = r#"{"type":"hist","data":{"@wait_us":[{"min":8,"max":15,"count":9}]}}"#;
        let later = report(&[WAITS, later]).histogram("wait_us");
        assert_eq!(later.since(&first).buckets, [(8, 16, 2)]);
    }

    #[test]
    fn numbers_are_shown_with_names_and_the_most_expensive_first() {
        let line = r#"{"type":"map","data":{"@async_work":{"23":5,"27":70},"@overflows":0}}"#;
        let report = report(&[line]);
        assert_eq!((report.value("async_work"), report.value_of("async_work", "23")), (75, 5));
        assert_eq!(report.text(), "async_work[recv]: 70\nasync_work[write]: 5\noverflows: 0\n");
        assert_eq!(report.json(), json!({"async_work": {"23": 5, "27": 70}, "overflows": 0}));
    }
}
