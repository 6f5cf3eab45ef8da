//! How traces start, and what is kept of an exchange.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use sluice_http::HeadLimits;

use super::*;
use crate::metrics::{Metrics, SpanFate};
use crate::record::ExchangeRecord;

const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn head(fields: &str) -> RequestHead {
    let limits = HeadLimits { head_bytes_max: 9999, headers_max: 50, target_bytes_max: 100 };
    let mut head = RequestHead::new();
    head.parse(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes(), &limits).unwrap();
    head
}

fn begin(fields: &str, trusted: bool, ratio: f64) -> Trace {
    Trace::begin(&head(fields), trusted, ratio, &mut fastrand::Rng::with_seed(3))
}

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

#[test]
fn the_sampled_share_is_close_to_the_ratio() {
    let mut random = fastrand::Rng::with_seed(1);
    let head = head("");
    let sampled = (0..10_000).filter(|_| Trace::begin(&head, true, 0.1, &mut random).is_sampled()).count();
    assert!((800..1200).contains(&sampled), "{sampled}");
}

#[test]
fn the_flag_of_an_untrusted_client_is_ignored() {
    let fields = format!("traceparent: {EXAMPLE}\r\n");
    for (trusted, ratio, sampled) in
        [(true, 0.0, true), (true, 1.0, true), (false, 0.0, false), (false, 1.0, true)]
    {
        let trace = begin(&fields, trusted, ratio);
        assert_eq!((trace.is_sampled(), trace.is_new()), (sampled, false), "{trusted} {ratio}");
        let told = Context::parse(&trace.traceparent()).unwrap();
        assert_eq!((told.trace_id, told.span_id, told.sampled), (trace.trace_id, trace.client, sampled));
    }
    assert!(!begin(&fields.replace("-01", "-00"), true, 1.0).is_sampled());
}

#[test]
fn client_data_is_kept_within_limits() {
    let long = "x".repeat(9000);
    let record = ExchangeRecord {
        method: long.as_bytes(),
        host: long.as_bytes(),
        target: long.as_bytes(),
        user_agent: b"\xff",
        ..ExchangeRecord::sample()
    };
    let state = format!("traceparent: {EXAMPLE}\r\ntracestate: a={long}\r\n");
    let record = Record::of(begin(&state, false, 1.0), &head(&state), &record, "/", Some(upstream()));
    let text = [&record.method, &record.host, &record.target, &record.state, &record.user_agent];
    assert!(text.iter().map(|text| text.len()).sum::<usize>() < 3000);
    assert_eq!(record.state, "", "a truncated tracestate would be a different one");
}

#[test]
fn the_buffer_keeps_its_limit_and_counts_dropped_spans() {
    let metrics = Metrics::new();
    let (tracer, buffered) = buffer(5, 4, &Arc::clone(&metrics));
    let record = || {
        let exchange = ExchangeRecord::sample();
        Record::of(begin("", false, 1.0), &head(""), &exchange, "/", Some(upstream()))
    };
    for _ in 0..3 {
        tracer.offer(true, record);
    }
    assert!(buffered.has_batch());
    assert_eq!(metrics.spans(SpanFate::BufferFull), 2, "two of six spans found no room");
    assert_eq!(buffered.take().len(), 2);
    tracer.offer(true, || panic!("spans being sent still count"));
    buffered.settle(4, SpanFate::Exported);
    tracer.offer(true, record);
    assert_eq!(buffered.take().len(), 1);
    drop(buffered);
    tracer.offer(true, record);
    assert_eq!([SpanFate::BufferFull, SpanFate::Failed].map(|fate| metrics.spans(fate)), [4, 2]);
}
