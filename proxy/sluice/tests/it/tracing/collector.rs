//! A collector: accepts spans over HTTP, as protobuf, and returns what it received.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as Any};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind, status::StatusCode};
use prost::Message as _;
use serde_json::{Value, json};

use crate::support::{Origin, Setup, poll};

/// A collector that accepts everything.
pub(super) fn collector() -> Origin {
    Origin::answering(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec())
}

/// Enables `tracing`; sampled spans are sent at once.
pub(super) fn traced(setup: Setup, collector: &str, ratio: f64) -> Setup {
    let endpoint = format!("http://{collector}/v1/traces");
    setup.with(
        "tracing",
        json!({"otlp_endpoint": endpoint, "sample_ratio": ratio, "export_interval_ms": 10, "service_name": "it"}),
    )
}

/// The spans received so far.
pub(super) fn spans(collector: &Origin) -> Vec<Span> {
    let requests = collector.requests().into_iter().map(|request| {
        assert_eq!(request.line, "POST /v1/traces HTTP/1.1");
        assert_eq!(request.get("content-type"), Some("application/x-protobuf"));
        ExportTraceServiceRequest::decode(&*request.body).unwrap()
    });
    let scopes = requests.flat_map(|request| request.resource_spans).flat_map(|resource| {
        let attributes = attributes(&resource.resource.unwrap().attributes);
        assert_eq!(attributes["service.name"], "it");
        resource.scope_spans
    });
    scopes.flat_map(|scope| scope.spans).collect()
}

/// Waits for exactly `count` spans.
pub(super) fn wait(collector: &Origin, count: usize) -> Vec<Span> {
    let spans = poll("spans", || Some(spans(collector)).filter(|spans| spans.len() >= count));
    assert_eq!(spans.len(), count, "{spans:?}");
    spans
}

pub(super) fn attributes(attributes: &[KeyValue]) -> BTreeMap<String, Value> {
    let value = |value: &KeyValue| match value.value.clone().unwrap().value.unwrap() {
        Any::StringValue(text) => json!(text),
        Any::IntValue(number) => json!(number),
        Any::DoubleValue(number) => json!(number),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|pair| (pair.key.clone(), value(pair))).collect()
}

/// The only span of this kind among those of an exchange.
pub(super) fn only(spans: &[Span], kind: SpanKind) -> (Span, BTreeMap<String, Value>) {
    let mut found = spans.iter().filter(|span| span.kind() == kind);
    let span = found.next().unwrap_or_else(|| panic!("no {kind:?}: {spans:?}")).clone();
    assert!(found.next().is_none(), "more than one {kind:?}");
    let attributes = attributes(&span.attributes);
    (span, attributes)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn code(span: &Span) -> StatusCode {
    span.status.as_ref().map_or(StatusCode::Unset, |status| status.code())
}
