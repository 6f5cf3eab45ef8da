//! What a scrape shows after known traffic, and that its text is well-formed.

#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};

use super::*;
use crate::error::Reason;
use crate::record::ExchangeRecord;

fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// The value of every series with the labels of an ordinary exchange and `more`.
fn app_value(text: &str, name: &str, more: &str) -> Option<f64> {
    let labels = r#"route="app",cluster="puma",endpoint="127.0.0.1:3000""#;
    value(text, &name.replace("{}", &format!("{{{more}{labels}}}")))
}

#[test]
fn exchanges_are_summed_over_workers() {
    let metrics = Metrics::new();
    let workers = [metrics.add_worker(), metrics.add_worker(), metrics.add_worker()];
    let threads = workers.map(|worker| {
        std::thread::spawn(move || {
            for status in [200, 200, 404, 502] {
                let reason = (status == 502).then_some(Reason::ConnectRefused);
                let sample = ExchangeRecord::sample();
                worker.record(&ExchangeRecord { status, reason, retries: 2, bytes_in: 5, ..sample });
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let text = metrics.render();
    let app = |name, more| app_value(&text, name, more);
    assert_eq!(app("sluice_request_body_bytes_total{}", ""), Some(60.0));
    assert_eq!(app("sluice_response_bytes_total{}", ""), Some(12.0 * 512.0));
    assert_eq!(app("sluice_request_duration_seconds_count{}", ""), Some(12.0));
    assert_eq!(app("sluice_upstream_duration_seconds_bucket{}", "le=\"0.01\","), Some(12.0));
    assert_eq!(app("sluice_upstream_duration_seconds_bucket{}", "le=\"0.005\","), Some(0.0));
    assert_eq!(value(&text, "sluice_retries_total"), Some(24.0));
    let refused = "sluice_errors_total{reason=\"connect_refused\",side=\"upstream\"}";
    assert_eq!(value(&text, refused), Some(3.0));
}

#[test]
fn requests_are_counted_by_class() {
    let metrics = Metrics::new();
    let worker = metrics.add_worker();
    for status in [200, 206, 404, 499, 502] {
        worker.record(&ExchangeRecord { status, route: None, ..ExchangeRecord::sample() });
    }
    let text = metrics.render();
    let labels = r#"route="-",cluster="puma",endpoint="127.0.0.1:3000""#;
    for (class, n) in [("2xx", Some(2.0)), ("3xx", Some(0.0)), ("4xx", Some(2.0)), ("1xx", None)] {
        let series = format!("sluice_requests_total{{{labels},class=\"{class}\"}}");
        assert_eq!(value(&text, &series), n, "{class}");
    }
}

#[test]
fn gauges_count_what_has_begun_and_not_ended() {
    let metrics = Metrics::new();
    let (a, b) = (metrics.add_worker(), metrics.add_worker());
    let pairs = [
        (Event::DownstreamAccepted, Event::DownstreamClosed, "sluice_downstream_connections_open"),
        (Event::UpstreamOpened, Event::UpstreamClosed, "sluice_upstream_connections_open"),
        (Event::UpstreamParked, Event::UpstreamUnparked, "sluice_upstream_connections_idle"),
        (Event::TunnelOpened, Event::TunnelClosed, "sluice_tunnels_open"),
    ];
    for (begun, ended, _) in pairs {
        a.count(begun);
        b.count(begun);
        a.count(ended);
    }
    // A worker's counts stay when it ends.
    drop((a, b));
    let text = metrics.render();
    for (_, _, name) in pairs {
        assert_eq!(value(&text, name), Some(1.0), "{name}");
    }
    let of_workers = ["min", "max"].map(|end| value(&text, &format!("sluice_workers_connections_{end}")));
    assert_eq!(of_workers, [Some(0.0), Some(1.0)], "one has none, the other has one");
}

#[test]
fn events_have_their_counters() {
    let metrics = Metrics::new();
    let worker = metrics.add_worker();
    let expected = [
        (Event::DownstreamAccepted, "sluice_downstream_connections_total"),
        (Event::DownstreamRejected, "sluice_downstream_connections_rejected_total"),
        (Event::DownstreamHanded, "sluice_downstream_connections_handed_total"),
        (Event::DownstreamMoved, "sluice_downstream_connections_moved_total"),
        (Event::DownstreamReused, "sluice_downstream_requests_reused_total"),
        (Event::UpstreamOpened, "sluice_upstream_connections_opened_total"),
        (Event::UpstreamReused, "sluice_upstream_connections_reused_total"),
        (Event::UpstreamClosed, "sluice_upstream_connections_closed_total"),
        (Event::TunnelOpened, "sluice_tunnels_opened_total"),
        (Event::TunnelBytesToUpstream, "sluice_tunnel_bytes_total{to=\"upstream\"}"),
        (Event::TunnelBytesToDownstream, "sluice_tunnel_bytes_total{to=\"downstream\"}"),
    ];
    for (n, (event, _)) in expected.iter().enumerate() {
        worker.add(*event, n as u64 + 1);
    }
    worker.error(Reason::TooManyConnections);
    let text = metrics.render();
    for (n, (_, name)) in expected.iter().enumerate() {
        assert_eq!(value(&text, name), Some(n as f64 + 1.0), "{name}");
    }
    let error = "sluice_errors_total{reason=\"too_many_connections\",side=\"internal\"}";
    assert_eq!(value(&text, error), Some(1.0));
}

#[test]
fn every_reason_is_its_own_index() {
    for (index, reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, index);
    }
}

#[test]
fn series_beyond_the_maximum_are_counted_together() {
    let metrics = Metrics::with_series_max(3);
    let (a, b) = (metrics.add_worker(), metrics.add_worker());
    let labels: Vec<String> = (0..8).map(|n| format!("10.0.0.{n}:80")).collect();
    for _ in 0..2 {
        for (id, label) in labels.iter().enumerate() {
            let record = ExchangeRecord { endpoint: Some((id as u32, label)), ..ExchangeRecord::sample() };
            a.record(&record);
            b.record(&record);
        }
    }
    let text = metrics.render();
    let counts = text.lines().filter(|l| l.starts_with("sluice_requests_total") && l.contains("2xx"));
    assert_eq!(counts.count(), 4);
    let other = r#"sluice_requests_total{route="other",cluster="other",endpoint="other",class="2xx"}"#;
    assert_eq!(value(&text, other), Some(2.0 * 2.0 * 5.0));
}

#[test]
fn a_key_with_a_new_meaning_counts_under_its_new_names() {
    let metrics = Metrics::new();
    let worker = metrics.add_worker();
    for name in ["before", "after", "before"] {
        worker.record(&ExchangeRecord {
            route: Some((0, name)),
            endpoint: None,
            cluster: None,
            ..ExchangeRecord::sample()
        });
    }
    let text = metrics.render();
    let series = |name| {
        format!("sluice_requests_total{{route=\"{name}\",cluster=\"-\",endpoint=\"-\",class=\"2xx\"}}")
    };
    assert_eq!(value(&text, &series("before")), Some(2.0));
    assert_eq!(value(&text, &series("after")), Some(1.0));
}

#[test]
fn the_text_is_well_formed() {
    let metrics = Metrics::new();
    let worker = metrics.add_worker();
    let sample = ExchangeRecord::sample();
    worker.record(&ExchangeRecord { route: Some((0, "a\"b\\c\nd")), ..sample.clone() });
    worker.record(&ExchangeRecord { route: None, cluster: None, status: 101, ..sample });
    metrics.count_panic();
    metrics.count_access_log_dropped(7);
    let text = metrics.render();
    assert_well_formed(&text);
    assert_eq!(value(&text, "sluice_panics_total"), Some(1.0));
    assert_eq!(value(&text, "sluice_access_log_dropped_total"), Some(7.0));
    let version = format!("sluice_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(value(&text, &version), Some(1.0));
    assert!(value(&text, "process_resident_memory_bytes").unwrap() > 0.0);
    assert!(value(&text, "process_cpu_seconds_total").is_some());
}

#[test]
fn endpoints_are_read_at_each_scrape() {
    let metrics = Metrics::new();
    metrics.set_status(|| {
        let states = [("a:1", false, 2, None), ("a:1", true, 3, Some(4)), ("b:1", false, 0, None)];
        let status = |(endpoint, healthy, in_flight, limit): (&str, _, _, _)| {
            let (cluster, endpoint) = ("puma".to_owned(), endpoint.to_owned());
            let saturated = std::time::Duration::from_millis(500 * in_flight);
            EndpointStatus {
                cluster,
                endpoint,
                healthy,
                weight: 2,
                in_flight,
                accept_queue: limit,
                saturated,
                limit,
            }
        };
        let queue = QueueStatus { cluster: "puma".to_owned(), length: 5, entered: 9, full: 2, timed_out: 1 };
        Status { endpoints: states.map(status).into(), queues: vec![queue], ..Status::default() }
    });
    let text = metrics.render();
    assert_well_formed(&text);
    for (endpoint, healthy, in_flight) in [("a:1", 1.0, 5.0), ("b:1", 0.0, 0.0)] {
        let labels = format!("{{cluster=\"puma\",endpoint=\"{endpoint}\"}}");
        assert_eq!(value(&text, &format!("sluice_endpoint_healthy{labels}")), Some(healthy));
        assert_eq!(value(&text, &format!("sluice_endpoint_in_flight{labels}")), Some(in_flight));
    }
    assert_eq!(value(&text, "sluice_endpoint_weight{cluster=\"puma\",endpoint=\"a:1\"}"), Some(2.0));
    let waiting = "sluice_endpoint_accept_queue{cluster=\"puma\",endpoint=\"a:1\"}";
    assert_eq!(value(&text, waiting), Some(4.0));
    let saturated = "sluice_endpoint_saturated_seconds_total{cluster=\"puma\",endpoint=\"a:1\"}";
    assert_eq!(value(&text, saturated), Some(1.5), "that of the endpoint which had it for longer");
    let limit = "sluice_endpoint_limit{cluster=\"puma\",endpoint=\"a:1\"}";
    assert_eq!(value(&text, limit), Some(4.0));
    assert!(!text.contains("sluice_endpoint_limit{cluster=\"puma\",endpoint=\"b:1\"}"));
    assert_eq!(value(&text, "sluice_queue_length{cluster=\"puma\"}"), Some(5.0));
    assert_eq!(value(&text, "sluice_queue_entered_total{cluster=\"puma\"}"), Some(9.0));
    for (reason, n) in [("queue_full", 2.0), ("queue_timeout", 1.0)] {
        let labels = format!("{{cluster=\"puma\",reason=\"{reason}\"}}");
        assert_eq!(value(&text, &format!("sluice_queue_rejected_total{labels}")), Some(n));
    }
}

/// OpenMetrics 1.0: one EOF at the end, each family declared once before its samples, no duplicate sample.
fn assert_well_formed(text: &str) {
    assert!(text.ends_with("\n# EOF\n"));
    let mut types: HashMap<&str, &str> = HashMap::new();
    let mut seen = HashSet::new();
    let mut family = "";
    for line in text.trim_end_matches("# EOF\n").lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(types.insert(name, kind).is_none(), "{name} is declared twice");
            family = name;
        } else if !line.starts_with('#') {
            let (series, number) = line.rsplit_once(' ').unwrap();
            number.parse::<f64>().unwrap();
            assert!(seen.insert(series), "{series} occurs twice");
            let name = series.split('{').next().unwrap();
            let suffixes: &[&str] = match types[family] {
                "counter" => &["_total"],
                "gauge" => &[""],
                "info" => &["_info"],
                _ => &["_sum", "_count", "_bucket"],
            };
            assert!(
                suffixes.iter().any(|s| name.strip_prefix(family) == Some(*s)),
                "{line} does not belong to {family}"
            );
        }
    }
}
