//! Formats one exchange as one line: JSON, LTSV or combined. Pure, except for the cached text of the last second.
//!
//! Targets are logged with their query, as received. The record does not contain credentials (Authorization, Cookie)
//! unless a service was deployed to log them. The combined format has no place for the extra fields that services log.

use std::io::Write;
use std::time::Duration;

use sluice_config::{self as config, LogField, LogFormat, Word};

use super::clock::Clock;
use super::escape;
use crate::record::{BodyPath, ExchangeRecord};

/// Maximum length of a logged value, in bytes as received: a client's long values must not drown other clients' lines.
const TARGET_BYTES_MAX: usize = 2048;
const FIELD_BYTES_MAX: usize = 512;
/// Appended to a truncated value.
const CUT: &[u8] = b"...";

type Escape = fn(&mut Vec<u8>, &[u8]);

/// Appends at most `bytes_max` bytes of a value.
fn put(out: &mut Vec<u8>, bytes: &[u8], bytes_max: usize, escape: Escape) {
    match bytes.get(..bytes_max) {
        Some(begin) if bytes.len() > bytes_max => {
            escape(out, begin);
            out.extend_from_slice(CUT);
        }
        _ => escape(out, bytes),
    }
}

/// Formats records as lines.
#[derive(Debug)]
pub(super) struct Formatter {
    format: LogFormat,
    fields: Vec<LogField>,
    clock: Clock,
}

/// A field's value, before it is formatted.
enum Value<'a> {
    Absent,
    Bytes(&'a [u8]),
    Target(&'a [u8]),
    Number(u64),
    Millis(Duration),
    Time,
    Client,
}

impl Formatter {
    pub(super) fn new(config: &config::AccessLog) -> Self {
        Self { format: config.format, fields: config.fields.clone(), clock: Clock::default() }
    }

    /// Appends the line of an exchange, including its newline.
    pub(super) fn line(&mut self, out: &mut Vec<u8>, record: &ExchangeRecord<'_>) {
        match self.format {
            LogFormat::Json => self.json(out, record),
            LogFormat::Ltsv => self.ltsv(out, record),
            LogFormat::Combined => combined(&mut self.clock, out, record),
        }
        out.push(b'\n');
    }

    fn json(&mut self, out: &mut Vec<u8>, record: &ExchangeRecord<'_>) {
        for (index, field) in self.fields.iter().enumerate() {
            out.extend_from_slice(if index == 0 { b"{\"" } else { b",\"" });
            out.extend_from_slice(field.word().as_bytes());
            out.extend_from_slice(b"\":");
            match value(*field, record) {
                Value::Absent => out.extend_from_slice(b"null"),
                Value::Number(n) => number(out, n),
                Value::Millis(duration) => millis(out, duration),
                text => {
                    out.push(b'"');
                    self.clock.text(out, &text, record, escape::json);
                    out.push(b'"');
                }
            }
        }
        for (index, (key, value)) in record.fields.iter().enumerate() {
            out.extend_from_slice(if self.fields.is_empty() && index == 0 { b"{\"" } else { b",\"" });
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(b"\":\"");
            // Already truncated when it was captured.
            escape::json(out, value);
            out.push(b'"');
        }
        let empty = self.fields.is_empty() && record.fields.is_empty();
        out.extend_from_slice(if empty { b"{}" } else { b"}" });
    }

    fn ltsv(&mut self, out: &mut Vec<u8>, record: &ExchangeRecord<'_>) {
        for (index, field) in self.fields.iter().enumerate() {
            if index > 0 {
                out.push(b'\t');
            }
            out.extend_from_slice(field.word().as_bytes());
            out.push(b':');
            match value(*field, record) {
                Value::Absent => out.push(b'-'),
                Value::Number(n) => number(out, n),
                Value::Millis(duration) => millis(out, duration),
                text => self.clock.text(out, &text, record, escape::ltsv),
            }
        }
        for (index, (key, value)) in record.fields.iter().enumerate() {
            if index > 0 || !self.fields.is_empty() {
                out.push(b'\t');
            }
            out.extend_from_slice(key.as_bytes());
            out.push(b':');
            escape::ltsv(out, if value.is_empty() { b"-" } else { value });
        }
    }
}

impl Clock {
    fn text(&mut self, out: &mut Vec<u8>, value: &Value<'_>, record: &ExchangeRecord<'_>, escape: Escape) {
        match value {
            Value::Bytes(bytes) => put(out, bytes, FIELD_BYTES_MAX, escape),
            Value::Target(target) => put(out, target, TARGET_BYTES_MAX, escape),
            Value::Time => self.rfc3339(out, record.started),
            _ => client(out, record),
        }
    }
}

/// `%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-agent}i"`; identity is always `-`.
fn combined(clock: &mut Clock, out: &mut Vec<u8>, record: &ExchangeRecord<'_>) {
    client(out, record);
    out.extend_from_slice(b" - ");
    // Quoted text needs quotes around it, which this place has not; a space would move the fields behind it.
    let user: Vec<u8> =
        record.user.bytes().map(|byte| if byte.is_ascii_graphic() { byte } else { b'_' }).collect();
    put(out, if user.is_empty() { b"-" } else { &user }, FIELD_BYTES_MAX, escape::quoted);
    out.extend_from_slice(b" [");
    clock.combined(out, record.started);
    out.extend_from_slice(b"] \"");
    if record.method.is_empty() && record.target.is_empty() {
        out.push(b'-');
    } else {
        put(out, record.method, FIELD_BYTES_MAX, escape::quoted);
        out.push(b' ');
        put(out, record.target, TARGET_BYTES_MAX, escape::quoted);
        out.push(b' ');
        escape::quoted(out, record.version.as_bytes());
    }
    out.extend_from_slice(b"\" ");
    number(out, u64::from(record.status));
    out.push(b' ');
    match record.bytes_out {
        0 => out.push(b'-'),
        n => number(out, n),
    }
    for text in [record.referer, record.user_agent] {
        out.extend_from_slice(b" \"");
        put(out, if text.is_empty() { b"-" } else { text }, FIELD_BYTES_MAX, escape::quoted);
        out.push(b'"');
    }
}

fn value<'a>(field: LogField, record: &ExchangeRecord<'a>) -> Value<'a> {
    match field {
        LogField::Time => Value::Time,
        LogField::RequestId => bytes(record.request_id),
        LogField::Listener => bytes(record.listener.as_bytes()),
        LogField::Client => Value::Client,
        LogField::Method => bytes(record.method),
        LogField::Host => bytes(record.host),
        LogField::Target if record.target.is_empty() => Value::Absent,
        LogField::Target => Value::Target(record.target),
        LogField::Protocol => bytes(record.version.as_bytes()),
        LogField::Status => Value::Number(u64::from(record.status)),
        LogField::Route => text(record.route.map(|r| r.1)),
        LogField::Cluster => text(record.cluster),
        LogField::Endpoint => text(record.endpoint.map(|e| e.1)),
        LogField::BytesIn => Value::Number(record.bytes_in),
        LogField::BytesOut => Value::Number(record.bytes_out),
        LogField::DurationMs => Value::Millis(record.duration),
        LogField::QueueMs => record.queue.map_or(Value::Absent, Value::Millis),
        LogField::ConnectMs => record.connect.map_or(Value::Absent, Value::Millis),
        LogField::UpstreamMs => record.upstream.map_or(Value::Absent, Value::Millis),
        LogField::TransferMs => record.transfer.map_or(Value::Absent, Value::Millis),
        LogField::Path => bytes(record.path.map_or("-", BodyPath::word).as_bytes()),
        LogField::Retries => Value::Number(u64::from(record.retries)),
        LogField::Reason => text(record.reason.map(|reason| reason.word())),
        LogField::User => bytes(record.user.as_bytes()),
        LogField::UserAgent => bytes(record.user_agent),
        LogField::Referer => bytes(record.referer),
    }
}

fn bytes(bytes: &[u8]) -> Value<'_> {
    if bytes.is_empty() { Value::Absent } else { Value::Bytes(bytes) }
}

fn text(text: Option<&str>) -> Value<'_> {
    text.map_or(Value::Absent, |text| bytes(text.as_bytes()))
}

fn number(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// Milliseconds with three decimals.
fn millis(out: &mut Vec<u8>, duration: Duration) {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    number(out, micros / 1_000);
    let rest = micros % 1_000;
    out.extend_from_slice(&[b'.', digit(rest / 100), digit(rest / 10), digit(rest)]);
}

fn digit(n: u64) -> u8 {
    b'0' + (n % 10) as u8
}

fn client(out: &mut Vec<u8>, record: &ExchangeRecord<'_>) {
    write!(out, "{}", record.client).expect("writing to a Vec cannot fail");
}

#[cfg(test)]
mod tests;
