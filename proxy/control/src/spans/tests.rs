//! The encoded spans.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::{AnyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use sluice_core::error::Reason;
use sluice_core::record::ExchangeRecord;
use sluice_core::spans::{Record, Trace, Upstream};
use sluice_http::RequestHead;

use super::encode;

fn upstream() -> Upstream {
    Upstream {
        host: "api.internal:3000".to_owned(),
        address: "[2001:db8::1]:3000".to_owned(),
        target: b"/a".to_vec(),
        began: Duration::from_millis(2),
        connect: None,
        first_byte: None,
        status: None,
    }
}

/// The spans of an exchange.
fn spans(exchange: &ExchangeRecord<'_>, upstream: Option<Upstream>) -> Vec<Span> {
    let head = RequestHead::new();
    let trace = Trace::begin(&head, false, 1.0, &mut fastrand::Rng::with_seed(3));
    let record = Record::of(trace, &head, exchange, "/", upstream);
    let mut request = encode::request("it", &[record]);
    request.resource_spans.remove(0).scope_spans.remove(0).spans
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let pair = span.attributes.iter().find(|pair| pair.key == key)?;
    match pair.value.clone() {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => Some(text),
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => Some(number.to_string()),
        other => panic!("{key} is {other:?}"),
    }
}

#[test]
fn unusual_exchanges_are_encoded() {
    let exchange = ExchangeRecord {
        method: b"BREW",
        target: b"http://example.com?x",
        host: b"[::1]:80",
        status: 499,
        reason: Some(Reason::ClientGone),
        ..ExchangeRecord::sample()
    };
    let spans = spans(&exchange, Some(upstream()));
    assert_eq!((spans[0].name.as_str(), spans[1].name.as_str()), ("HTTP /", "HTTP"));
    for (span, key, value) in [
        (0, "http.request.method", Some("_OTHER")),
        (0, "http.request.method_original", Some("BREW")),
        (0, "url.path", None),
        (0, "url.query", Some("x")),
        (0, "server.address", Some("::1")),
        (0, "server.port", Some("80")),
        (0, "http.response.status_code", None),
        (0, "sluice.reason", Some("client_gone")),
        (0, "error.type", None),
        (1, "server.address", Some("api.internal")),
        (1, "network.peer.address", Some("2001:db8::1")),
        (1, "network.peer.port", Some("3000")),
        (1, "url.full", Some("http://api.internal:3000/a")),
    ] {
        assert_eq!(attribute(&spans[span], key).as_deref(), value, "{key}");
    }
    assert_eq!(spans[1].end_time_unix_nano, spans[0].end_time_unix_nano);
    assert_eq!(spans[1].start_time_unix_nano - spans[0].start_time_unix_nano, 2_000_000);
}

#[test]
fn a_unix_socket_is_an_address_without_a_port() {
    let upstream = Upstream { host: "localhost".into(), address: "unix:/run/a:1".into(), ..upstream() };
    let spans = spans(&ExchangeRecord::sample(), Some(upstream));
    assert_eq!(attribute(&spans[1], "network.peer.address").as_deref(), Some("/run/a:1"));
    assert_eq!(attribute(&spans[1], "network.peer.port"), None);
    assert_eq!(attribute(&spans[1], "url.full").as_deref(), Some("http://localhost/a"));
}
