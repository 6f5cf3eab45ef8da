//! Selects the lines to show. A line without a field does not match a filter on that field. Pure.

use crate::usage::UsageError;
use std::str::FromStr;

use clap::Args;

use super::line::Entry;

/// Conditions that a line must all meet.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Filter {
    /// Only these statuses: 404, 5xx, 500-504; separate several with commas
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    pub(super) status: Vec<Statuses>,
    /// Only this host, with any port; *.example.com matches its subdomains
    #[arg(long, value_name = "HOST")]
    pub(super) host: Option<String>,
    /// Only targets with this prefix
    #[arg(long, value_name = "PREFIX")]
    pub(super) path: Option<String>,
    /// Only exchanges that took at least this long
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub(super) min_duration_ms: Option<f64>,
    /// Only these reasons, such as queue_timeout; any matches every failure
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    pub(super) reason: Vec<String>,
    /// Only this path
    #[arg(long, value_name = "PATH", value_delimiter = ',', value_parser = ["copy", "bypass", "splice", "direct"])]
    pub(super) path_taken: Vec<String>,
}

/// A range of statuses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Statuses(u16, u16);

impl FromStr for Statuses {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Self, UsageError> {
        let status = |text: &str| text.parse::<u16>().ok().filter(|status| (100..=599).contains(status));
        let class = text.strip_suffix("xx").and_then(|class| status(&format!("{class}00")));
        let range = match text.split_once('-') {
            Some((first, last)) => status(first).zip(status(last)).filter(|(first, last)| first <= last),
            None => class.map(|first| (first, first + 99)).or(status(text).map(|only| (only, only))),
        };
        range
            .map(|(first, last)| Self(first, last))
            .ok_or_else(|| "not a status; write one such as 404, 5xx or 500-504".into())
    }
}

fn milliseconds(text: &str) -> Result<f64, UsageError> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "not a duration; write milliseconds such as 250".into())
}

impl Filter {
    /// Whether all lines are shown, including lines that are not entries.
    pub(super) fn is_empty(&self) -> bool {
        let Self { status, host, path, min_duration_ms, reason, path_taken } = self;
        status.is_empty()
            && host.is_none()
            && path.is_none()
            && min_duration_ms.is_none()
            && reason.is_empty()
            && path_taken.is_empty()
    }

    /// Whether the entry is shown.
    pub(super) fn matches(&self, entry: &Entry) -> bool {
        let among = |words: &[String], word: Option<&String>| {
            words.is_empty() || word.is_some_and(|word| words.contains(word))
        };
        let status = |ranges: &[Statuses]| {
            entry
                .status
                .is_some_and(|status| ranges.iter().any(|range| (range.0..=range.1).contains(&status)))
        };
        (self.status.is_empty() || status(&self.status))
            && self
                .host
                .as_ref()
                .is_none_or(|host| entry.host.as_ref().is_some_and(|said| is_host(said, host)))
            && self
                .path
                .as_ref()
                .is_none_or(|path| entry.target.as_ref().is_some_and(|said| said.starts_with(path)))
            && self.min_duration_ms.is_none_or(|least| entry.duration_ms.is_some_and(|took| took >= least))
            && (entry.reason.is_some() && self.reason.iter().any(|word| word == "any")
                || among(&self.reason, entry.reason.as_ref()))
            && among(&self.path_taken, entry.path.as_ref())
    }
}

fn is_host(said: &str, wanted: &str) -> bool {
    let bare = said.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let bare = bare.map_or(said, |(host, _)| host);
    match wanted.strip_prefix('*') {
        Some(suffix) if suffix.starts_with('.') => {
            bare.len() > suffix.len() && bare.to_ascii_lowercase().ends_with(&suffix.to_ascii_lowercase())
        }
        _ => [bare, said].iter().any(|host| host.eq_ignore_ascii_case(wanted)),
    }
}
