//! Encodes spans for OTLP, with the names of the stable HTTP semantic conventions (1.23 and later).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status, span, status};

use sluice_core::error::{Reason, Side};
use sluice_core::spans::{Record, Upstream};

const SCHEMA: &str = "https://opentelemetry.io/schemas/1.29.0";

/// Bit 8 of a span's flags means that bit 9 is known, which means that the parent belongs to another process.
const PARENT_IS_LOCAL: u32 = 0x100;
/// See [`PARENT_IS_LOCAL`].
const PARENT_IS_REMOTE: u32 = 0x300;

/// Methods that are named as they are; others would create an unlimited number of names (semantic conventions).
const METHODS: [&str; 10] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"];

/// Exchanges as one request to a collector.
pub(super) fn request(service_name: &str, records: &[Record]) -> ExportTraceServiceRequest {
    let spans = records.iter().flat_map(|record| {
        let upstream = record.upstream.as_ref().map(|upstream| client_span(record, upstream));
        [Some(server_span(record)), upstream].into_iter().flatten()
    });
    let scope = InstrumentationScope {
        name: "sluice".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans =
        ScopeSpans { scope: Some(scope), spans: spans.collect(), schema_url: SCHEMA.to_owned() };
    let resource_spans = ResourceSpans {
        resource: Some(resource(service_name)),
        scope_spans: vec![scope_spans],
        schema_url: SCHEMA.to_owned(),
    };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

fn resource(service_name: &str) -> Resource {
    let mut attributes = Attributes::default();
    attributes.text("service.name", service_name);
    attributes.text("service.version", env!("CARGO_PKG_VERSION"));
    attributes.number("process.pid", u64::from(std::process::id()));
    Resource { attributes: attributes.0, ..Resource::default() }
}

/// The exchange as the client sees it.
fn server_span(record: &Record) -> Span {
    let method = method(record);
    let prefix = record.route.as_ref().map(|(_, prefix)| prefix.as_str());
    let failed = match record.reason {
        Some(reason) if reason.side() != Side::Downstream => Some(reason.word().to_owned()),
        _ => (record.status >= 500).then(|| record.status.to_string()),
    };
    let mut attributes = Attributes::default();
    request_attributes(&mut attributes, record, method);
    attributes.some_text("http.route", prefix);
    answer_attributes(&mut attributes, record);
    own_attributes(&mut attributes, record);
    attributes.some_text("error.type", failed.as_deref());
    Span {
        span_id: record.trace.server_span().0.to_be_bytes().to_vec(),
        parent_span_id: record
            .trace
            .server_span()
            .1
            .map_or_else(Vec::new, |parent| parent.to_be_bytes().to_vec()),
        flags: PARENT_IS_REMOTE | u32::from(record.trace.flags()),
        name: prefix.map_or_else(|| name(method).to_owned(), |prefix| format!("{} {prefix}", name(method))),
        kind: span::SpanKind::Server.into(),
        start_time_unix_nano: nanos(record.started),
        end_time_unix_nano: nanos(record.started + record.duration),
        attributes: attributes.0,
        status: failed.map(|_| error(record)),
        ..common(record)
    }
}

/// The request to the endpoint.
fn client_span(record: &Record, upstream: &Upstream) -> Span {
    let method = method(record);
    let failed = match (record.reason, upstream.status) {
        (Some(reason), _) if reason.side() == Side::Upstream => Some(reason.word().to_owned()),
        (_, Some(status)) if status >= 400 => Some(status.to_string()),
        _ => None,
    };
    let mut attributes = Attributes::default();
    method_attributes(&mut attributes, record, method);
    attributes.text("url.full", &url(upstream));
    address_attributes(&mut attributes, "server.address", "server.port", &upstream.host);
    address_attributes(&mut attributes, "network.peer.address", "network.peer.port", &upstream.address);
    attributes.text("network.protocol.version", "1.1");
    attributes.some_number("http.response.status_code", upstream.status.map(u64::from));
    attributes.some_number("http.request.resend_count", Some(record.retries.into()).filter(|n| *n > 0));
    attributes.millis("sluice.connect_ms", upstream.connect);
    attributes.millis("sluice.upstream_ms", upstream.first_byte);
    attributes.text("sluice.path", record.path);
    attributes.some_text("error.type", failed.as_deref());
    Span {
        span_id: record.trace.client_span().to_be_bytes().to_vec(),
        parent_span_id: record.trace.server_span().0.to_be_bytes().to_vec(),
        flags: PARENT_IS_LOCAL | u32::from(record.trace.flags()),
        name: name(method).to_owned(),
        kind: span::SpanKind::Client.into(),
        start_time_unix_nano: nanos(record.started + upstream.began.min(record.duration)),
        end_time_unix_nano: nanos(record.started + record.duration),
        attributes: attributes.0,
        status: failed.map(|_| error(record)),
        ..common(record)
    }
}

/// The parts common to both spans.
fn common(record: &Record) -> Span {
    Span {
        trace_id: record.trace.trace_id().to_be_bytes().to_vec(),
        trace_state: record.state.clone(),
        ..Span::default()
    }
}

/// `None` is a method that is not named.
fn method(record: &Record) -> Option<&'static str> {
    METHODS.into_iter().find(|known| *known == record.method)
}

fn name(method: Option<&'static str>) -> &'static str {
    method.unwrap_or("HTTP")
}

fn method_attributes(attributes: &mut Attributes, record: &Record, method: Option<&'static str>) {
    attributes.text("http.request.method", method.unwrap_or("_OTHER"));
    if method.is_none() {
        attributes.text("http.request.method_original", &record.method);
    }
}

fn request_attributes(attributes: &mut Attributes, record: &Record, method: Option<&'static str>) {
    method_attributes(attributes, record, method);
    let origin_form = without_authority(&record.target);
    let (path, query) = origin_form.split_once('?').unwrap_or((origin_form, ""));
    attributes.text("url.scheme", "http");
    attributes.text("url.path", path);
    attributes.text("url.query", query);
    address_attributes(attributes, "server.address", "server.port", &record.host);
    attributes.text("client.address", &record.client.to_string());
    attributes.text("network.protocol.version", record.version.trim_start_matches("HTTP/"));
    attributes.text("user_agent.original", &record.user_agent);
    attributes.some_number("http.request.body.size", Some(record.bytes_in).filter(|n| *n > 0));
}

/// The part of an absolute-form target after its authority.
fn without_authority(target: &str) -> &str {
    let Some((_, rest)) = target.split_once("://").filter(|_| !target.starts_with('/')) else {
        return target;
    };
    rest.find(['/', '?']).map_or("", |at| &rest[at..])
}

fn answer_attributes(attributes: &mut Attributes, record: &Record) {
    // 499 is our status for a client that has gone; it was never sent.
    let sent = (100..=599).contains(&record.status) && !(record.status == 499 && record.reason.is_some());
    attributes.some_number("http.response.status_code", sent.then_some(record.status.into()));
    attributes.number("http.response.size", record.bytes_out);
}

/// Fields of the access log without an attribute in the conventions.
fn own_attributes(attributes: &mut Attributes, record: &Record) {
    attributes.text("sluice.request_id", &record.request_id);
    attributes.text("sluice.listener", &record.listener);
    attributes.some_text("sluice.route", record.route.as_ref().map(|(name, _)| name.as_str()));
    attributes.some_text("sluice.cluster", record.cluster.as_deref());
    attributes
        .some_text("sluice.endpoint", record.upstream.as_ref().map(|upstream| upstream.address.as_str()));
    attributes.text("sluice.path", record.path);
    attributes.millis("sluice.queue_ms", record.queue);
    attributes.some_text("sluice.reason", record.reason.map(Reason::word));
}

fn url(upstream: &Upstream) -> String {
    let target = String::from_utf8_lossy(&upstream.target);
    // A URL cannot contain a unix socket; the matching Host is localhost.
    let host = if upstream.host.starts_with("unix:") { "localhost" } else { &upstream.host };
    format!("http://{host}{}{target}", if target.starts_with('/') { "" } else { "/" })
}

/// A host or address as its two attributes.
fn address_attributes(attributes: &mut Attributes, name: &'static str, port: &'static str, text: &str) {
    if let Some(path) = text.strip_prefix("unix:") {
        return attributes.text(name, path);
    }
    match text.rsplit_once(':').map(|(host, digits)| (host, digits.parse::<u16>())) {
        Some((host, Ok(number))) => {
            attributes.text(name, bare(host));
            attributes.number(port, number.into());
        }
        _ => attributes.text(name, bare(text)),
    }
}

/// An IPv6 address without the brackets of a URL.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn error(record: &Record) -> Status {
    // A status code that is sufficient needs no message (semantic conventions).
    let message = record.reason.map(Reason::word).unwrap_or_default().to_owned();
    Status { message, code: status::StatusCode::Error.into() }
}

fn nanos(at: SystemTime) -> u64 {
    u64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// Attributes under construction; empty ones are left out.
#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn put(&mut self, key: &'static str, value: Value) {
        let value = Some(AnyValue { value: Some(value) });
        self.0.push(KeyValue { key: key.to_owned(), value, ..KeyValue::default() });
    }

    fn text(&mut self, key: &'static str, text: &str) {
        if !text.is_empty() {
            self.put(key, Value::StringValue(text.to_owned()));
        }
    }

    fn some_text(&mut self, key: &'static str, text: Option<&str>) {
        self.text(key, text.unwrap_or_default());
    }

    fn number(&mut self, key: &'static str, number: u64) {
        self.put(key, Value::IntValue(i64::try_from(number).unwrap_or(i64::MAX)));
    }

    fn some_number(&mut self, key: &'static str, number: Option<u64>) {
        if let Some(number) = number {
            self.number(key, number);
        }
    }

    fn millis(&mut self, key: &'static str, duration: Option<Duration>) {
        if let Some(duration) = duration {
            self.put(key, Value::DoubleValue(duration.as_secs_f64() * 1e3));
        }
    }
}
