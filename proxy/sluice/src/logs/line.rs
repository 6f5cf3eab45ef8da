//! Parses a line of the access log: JSON, LTSV or combined, detected from the line. Pure.

use std::collections::HashMap;

use sluice_config::{LogField, Word};

/// The fields of a line. Missing ones are `None`: the fields of a log are configurable.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Entry {
    /// `MM-DD hh:mm:ss`, with milliseconds where the format has them. UTC.
    pub(super) time: Option<String>,
    pub(super) client: Option<String>,
    pub(super) method: Option<String>,
    pub(super) host: Option<String>,
    pub(super) target: Option<String>,
    pub(super) status: Option<u16>,
    pub(super) endpoint: Option<String>,
    pub(super) duration_ms: Option<f64>,
    pub(super) queue_ms: Option<f64>,
    pub(super) path: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) request_id: Option<String>,
}

impl Entry {
    /// Parses a line without its newline; `None` if it has none of our formats.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        if line.starts_with('{') {
            return json(line);
        }
        ltsv(line).or_else(|| combined(line))
    }

    fn of(get: impl Fn(LogField) -> Option<String>) -> Self {
        let number = |field| get(field)?.parse::<f64>().ok();
        Self {
            time: get(LogField::Time).and_then(|time| rfc3339(&time)),
            client: get(LogField::Client),
            method: get(LogField::Method),
            host: get(LogField::Host),
            target: get(LogField::Target),
            status: get(LogField::Status).and_then(|status| status.parse().ok()),
            endpoint: get(LogField::Endpoint),
            duration_ms: number(LogField::DurationMs),
            queue_ms: number(LogField::QueueMs),
            path: get(LogField::Path),
            reason: get(LogField::Reason),
            request_id: get(LogField::RequestId),
        }
    }
}

fn json(line: &str) -> Option<Entry> {
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).ok()?;
    if !fields.keys().any(|key| is_field(key)) {
        return None;
    }
    Some(Entry::of(|field| match fields.get(field.word())? {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    }))
}

fn ltsv(line: &str) -> Option<Entry> {
    let fields: HashMap<&str, &str> =
        line.split('\t').map(|pair| pair.split_once(':')).collect::<Option<_>>()?;
    if !fields.keys().all(|key| is_field(key)) {
        return None;
    }
    Some(Entry::of(|field| {
        fields.get(field.word()).filter(|value| **value != "-").map(|value| (*value).to_owned())
    }))
}

fn is_field(word: &str) -> bool {
    LogField::ALL.iter().any(|field| field.word() == word)
}

/// `client - - [time] "request line" status bytes "referer" "agent"`.
fn combined(line: &str) -> Option<Entry> {
    let (client, rest) = line.split_once(' ')?;
    let (time, rest) = rest.split_once('[')?.1.split_once("] ")?;
    let (request, rest) = quoted(rest)?;
    let status = rest.strip_prefix(' ')?.split(' ').next()?.parse().ok()?;
    let mut request = request.splitn(3, ' ').map(str::to_owned);
    let method = request.next().filter(|method| method != "-");
    let target = request.next().filter(|target| !target.is_empty());
    let (client, time) = (Some(client.to_owned()), Some(apache(time)?));
    Some(Entry { time, client, method, target, status: Some(status), ..Entry::default() })
}

/// The content of a quoted string, with its escapes, and the rest.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_prefix('"')?;
    let mut escaped = false;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some((&inside[..at], &inside[at + 1..])),
            _ => {}
        }
    }
    None
}

/// `2026-11-21T10:00:00.042Z`.
fn rfc3339(time: &str) -> Option<String> {
    let (date, time) = time.split_once('T')?;
    Some(format!("{} {}", date.get(5..)?, time.trim_end_matches('Z')))
}

/// `21/Nov/2026:10:00:00 +0000`.
fn apache(time: &str) -> Option<String> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let (day, rest) = time.split_once('/')?;
    let (month, rest) = rest.split_once('/')?;
    let month = MONTHS.find(month).filter(|_| month.len() == 3)? / 3 + 1;
    let clock = rest.split_once(':')?.1.split(' ').next()?;
    Some(format!("{month:02}-{day} {clock}"))
}
