//! Traces: the fields sent to the origin, the spans sent to a collector, and that no request waits for one.

mod collector;

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::{span::SpanKind, status::StatusCode};
use prost::Message as _;
use serde_json::{Value, json};

use crate::support::{Authority, Dead, Identity, Message, Origin, Proxy, Setup, ok, poll};
use collector::{attributes, code, collector, hex, only, spans, traced, wait};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Trace, span and flags that the origin received.
fn told(request: &Message) -> (String, String, String) {
    let parts: Vec<&str> = request.get("traceparent").unwrap().split('-').collect();
    assert_eq!((parts[0], parts.len()), ("00", 4), "{parts:?}");
    (parts[1].to_owned(), parts[2].to_owned(), parts[3].to_owned())
}

fn get(proxy: &Proxy, fields: &str) -> Message {
    proxy.ask(format!("GET /a/b?c=d HTTP/1.1\r\nHost: example.test:81\r\n{fields}\r\n"))
}

fn now_nanos() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

#[test]
fn a_trace_starts_here_without_a_traceparent() {
    let (collector, origin) = (collector(), Origin::saying("hello"));
    let before = now_nanos();
    let Some(proxy) = traced(Setup::to_origin(&origin), &collector.endpoint, 1.0).start() else { return };
    // A tracestate without a trace has no meaning.
    assert_eq!(get(&proxy, "User-Agent: it/1\r\nTracestate: a=b\r\n").text(), "hello");
    let request = origin.last();
    let (trace, parent, flags) = told(&request);
    assert_eq!((flags.as_str(), request.get("tracestate")), ("03", None), "sampled, with a random id");

    let spans = wait(&collector, 2);
    let (server, of_server) = only(&spans, SpanKind::Server);
    let (client, of_client) = only(&spans, SpanKind::Client);
    assert_eq!((hex(&server.trace_id), hex(&client.trace_id)), (trace.clone(), trace));
    assert_eq!((hex(&server.parent_span_id), hex(&client.span_id)), (String::new(), parent));
    assert_eq!(client.parent_span_id, server.span_id);
    assert_eq!((server.name.as_str(), client.name.as_str()), ("GET /", "GET"));
    assert_eq!((code(&server), code(&client)), (StatusCode::Unset, StatusCode::Unset));
    let times = [
        before,
        server.start_time_unix_nano,
        client.start_time_unix_nano,
        client.end_time_unix_nano,
        server.end_time_unix_nano,
        now_nanos(),
    ];
    assert!(times.is_sorted(), "{times:?}");

    let record = proxy.record("/a/b?c=d");
    let port = origin.endpoint.rsplit(':').next().unwrap().parse::<u16>().unwrap();
    for (name, value) in [
        ("http.request.method", json!("GET")),
        ("http.route", json!("/")),
        ("http.response.status_code", json!(200)),
        ("http.response.size", record["bytes_out"].clone()),
        ("url.scheme", json!("http")),
        ("url.path", json!("/a/b")),
        ("url.query", json!("c=d")),
        ("server.address", json!("example.test")),
        ("server.port", json!(81)),
        ("client.address", json!("127.0.0.1")),
        ("network.protocol.version", json!("1.1")),
        ("user_agent.original", json!("it/1")),
        ("sluice.request_id", record["request_id"].clone()),
        ("sluice.listener", json!("main")),
        ("sluice.route", json!("default")),
        ("sluice.cluster", json!("default")),
        ("sluice.endpoint", json!(origin.endpoint)),
        ("sluice.path", record["path"].clone()),
    ] {
        assert_eq!(of_server.get(name), Some(&value), "{name}");
    }
    assert!(of_server["sluice.queue_ms"].is_f64() && !of_server.contains_key("error.type"));
    for (name, value) in [
        ("http.request.method", json!("GET")),
        ("http.response.status_code", json!(200)),
        ("url.full", json!(format!("http://{}/a/b?c=d", origin.endpoint))),
        ("server.address", json!("127.0.0.1")),
        ("server.port", json!(port)),
        ("network.peer.address", json!("127.0.0.1")),
        ("network.peer.port", json!(port)),
    ] {
        assert_eq!(of_client.get(name), Some(&value), "{name}");
    }
    assert!(of_client["sluice.connect_ms"].is_f64() && of_client["sluice.upstream_ms"].is_f64());
    poll("the count", || (proxy.metric("sluice_spans_exported_total") == 2.0).then_some(()));
}

#[test]
fn a_trace_continues_with_its_state() {
    let (collector, origin) = (collector(), Origin::saying(""));
    let Some(proxy) = traced(Setup::to_origin(&origin), &collector.endpoint, 1.0).start() else { return };
    get(&proxy, &format!("TraceParent: 00-{TRACE}-{PARENT}-00\r\nTracestate: a=b\r\ntracestate: c=d\r\n"));
    let request = origin.last();
    let (trace, parent, flags) = told(&request);
    // The flag of an untrusted client is ignored.
    assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "01"));
    assert_eq!(request.all("tracestate"), ["a=b", "c=d"]);
    let spans = wait(&collector, 2);
    let (server, _) = only(&spans, SpanKind::Server);
    let (client, _) = only(&spans, SpanKind::Client);
    assert_eq!((hex(&server.trace_id), hex(&server.parent_span_id)), (TRACE.to_owned(), PARENT.to_owned()));
    assert_eq!((hex(&client.span_id), client.trace_state.as_str()), (parent, "a=b,c=d"));
}

#[test]
fn an_invalid_traceparent_starts_a_new_trace() {
    let (collector, origin) = (collector(), Origin::saying(""));
    let Some(proxy) = traced(Setup::to_origin(&origin), &collector.endpoint, 0.0).start() else { return };
    let good = format!("Traceparent: 00-{TRACE}-{PARENT}-01\r\n");
    for fields in [good.replace("00-", "ff-"), good.replace(PARENT, "0000000000000000"), good.repeat(2)] {
        get(&proxy, &format!("{fields}Tracestate: a=b\r\n"));
        let request = origin.last();
        let (trace, _, flags) = told(&request);
        assert!(trace != TRACE && trace.len() == 32, "{trace}");
        assert_eq!((flags.as_str(), request.get("tracestate")), ("02", None));
    }
    // The trace continues here, but its flag comes from an untrusted client.
    get(&proxy, &good);
    let (trace, parent, flags) = told(&origin.last());
    assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "00"));
    assert_ne!(parent, PARENT);
}

#[test]
fn a_trusted_proxy_decides_sampling() {
    for (ratio, flags, sampled) in [(0.0, "01", true), (1.0, "00", false)] {
        let (collector, origin) = (collector(), Origin::saying(""));
        let setup = traced(Setup::to_origin(&origin), &collector.endpoint, ratio)
            .with("trusted_proxies", json!(["127.0.0.1"]));
        let Some(proxy) = setup.start() else { return };
        get(&proxy, &format!("Traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n"));
        assert_eq!(told(&origin.last()).2, flags);
        // Without a decision the ratio applies; this request comes after the first.
        get(&proxy, "");
        let spans = wait(&collector, 2);
        let continued = spans.iter().all(|span| hex(&span.trace_id) == TRACE);
        assert_eq!(continued, sampled);
    }
}

#[test]
fn without_tracing_fields_are_unchanged() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    get(&proxy, "");
    assert_eq!(origin.last().get("traceparent"), None);
    get(&proxy, "traceparent: nonsense\r\ntraceparent: 2\r\ntracestate: a=b\r\n");
    let request = origin.last();
    assert_eq!(request.all("traceparent"), ["nonsense", "2"]);
    assert_eq!(request.get("tracestate"), Some("a=b"));
}

#[test]
fn a_route_may_remove_trace_fields() {
    let (collector, origin) = (collector(), Origin::saying(""));
    let setup = traced(Setup::to_origin(&origin), &collector.endpoint, 1.0).with(
        "routes",
        json!([{
            "path_prefix": "/a",
            "strip_prefix": true,
            "cluster": "default",
            "request_headers": {"remove": ["traceparent"]},
        }]),
    );
    let Some(proxy) = setup.start() else { return };
    get(&proxy, &format!("Traceparent: 00-{TRACE}-{PARENT}-00\r\n"));
    assert_eq!(origin.last().get("traceparent"), None);
    let spans = wait(&collector, 2);
    let (server, of_server) = only(&spans, SpanKind::Server);
    assert_eq!((server.name.as_str(), &of_server["url.path"]), ("GET /a", &json!("/a/b")));
    let (_, of_client) = only(&spans, SpanKind::Client);
    assert_eq!(of_client["url.full"], json!(format!("http://{}/b?c=d", origin.endpoint)));
}

#[test]
fn failures_are_distinguished() {
    let failing = Origin::answering(|request| match request.target() {
        "/500" => b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_vec(),
        "/404" => b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".to_vec(),
        _ => b"nonsense\r\n\r\n".to_vec(),
    });
    let dead = Dead::new();
    let routes = json!([
        {"path_prefix": "/dead", "cluster": "dead"},
        {"path_prefix": "/moved", "redirect": {"location": "/"}},
        {"cluster": "default"},
    ]);
    for (target, spans, server_error, client_error, status) in [
        ("/500", 2, Some("500"), Some("500"), 500),
        ("/404", 2, None, Some("404"), 404),
        ("/nonsense", 2, Some("bad_response"), Some("bad_response"), 502),
        ("/dead", 1, Some("connect_refused"), None, 502),
        ("/moved", 1, None, None, 302),
    ] {
        let collector = collector();
        let setup = traced(Setup::to_origin(&failing), &collector.endpoint, 1.0)
            .with("clusters.dead", json!({"endpoints": [dead.endpoint()]}))
            .with("routes", routes.clone());
        let Some(proxy) = setup.start() else { return };
        assert_eq!(proxy.get(target).status(), status);
        let spans = wait(&collector, spans);
        let error = |kind, expected: Option<&str>| {
            let (span, attributes) = only(&spans, kind);
            assert_eq!(attributes.get("error.type"), expected.map(|word| json!(word)).as_ref(), "{target}");
            let code = if expected.is_some() { StatusCode::Error } else { StatusCode::Unset };
            assert_eq!(span.status.map_or(StatusCode::Unset, |status| status.code()), code, "{target}");
            attributes
        };
        let of_server = error(SpanKind::Server, server_error);
        assert_eq!(of_server["http.response.status_code"], json!(status));
        if spans.len() == 2 {
            let own = error(SpanKind::Client, client_error).get("http.response.status_code").cloned();
            assert_eq!(own, (target != "/nonsense").then(|| json!(status)), "the origin sent no response");
        }
    }
}

#[test]
fn a_retry_is_recorded() {
    let collector = collector();
    let origin = Origin::playing(|mut peer| {
        peer.next();
        peer.send(ok(""));
        // The first connection closes at its second request.
        if peer.index == 0 {
            peer.next();
            return peer.reset();
        }
        peer.expect_end();
    });
    let Some(proxy) = traced(Setup::to_origin(&origin), &collector.endpoint, 1.0).start() else { return };
    get(&proxy, "");
    assert_eq!(get(&proxy, "").status(), 200);
    let spans = wait(&collector, 4);
    let again: Vec<_> = spans.iter().map(|span| attributes(&span.attributes)).collect();
    assert_eq!(
        again.iter().filter(|span| span.get("http.request.resend_count") == Some(&json!(1))).count(),
        1
    );
}

#[test]
fn a_collector_behind_tls_is_verified() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let origin = Origin::saying("hello");
    let secure = |identity: Identity| {
        Origin::answering_tls(identity.server(), |_| b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec())
    };
    let start = |collector: &Origin| {
        let setup = traced(Setup::to_origin(&origin), &collector.endpoint, 1.0);
        let file = setup.file("ca.pem", &authority.pem());
        let setup = setup.after(&format!("export SSL_CERT_FILE={}", file.display()));
        setup.with("tracing.otlp_endpoint", format!("https://{}", collector.endpoint)).start()
    };
    let trusted = secure(authority.identity(&["127.0.0.1"]));
    let Some(proxy) = start(&trusted) else { return };
    assert_eq!(get(&proxy, "").text(), "hello");
    wait(&trusted, 2);
    let untrusted = secure(stranger.identity(&["127.0.0.1"]));
    let proxy = start(&untrusted).unwrap();
    assert_eq!(get(&proxy, "").text(), "hello");
    proxy.wait_for("cannot send spans");
    assert_eq!(untrusted.requests().len(), 0);
}

#[test]
fn a_collector_that_is_down_or_hangs_costs_no_request() {
    let (dead, hangs) = (Dead::new(), Origin::playing(|mut peer| while peer.next().is_some() {}));
    for endpoint in [dead.endpoint(), hangs.endpoint.clone()] {
        let origin = Origin::saying("hello");
        let setup = traced(Setup::to_origin(&origin), &endpoint, 1.0)
            .with("tracing.buffer_spans_max", 16)
            .with("tracing.export_timeout_ms", 60_000);
        let Some(mut proxy) = setup.start() else { return };
        let mut client = proxy.connect();
        for _ in 0..100 {
            assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "hello");
        }
        poll("the drops", || {
            let lost = ["buffer_full", "failed"]
                .map(|reason| proxy.metric(&format!("sluice_spans_dropped_total{{reason=\"{reason}\"}}")));
            (lost[0] + lost[1] >= 200.0 - 16.0).then_some(())
        });
        assert_eq!(proxy.metric("sluice_spans_exported_total"), 0.0);
        proxy.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(proxy.wait().success(), "shutdown is not delayed for long");
    }
}

#[test]
fn the_collectors_response_is_respected() {
    let collector = Origin::answering({
        let asked = std::sync::atomic::AtomicUsize::new(0);
        move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n".to_vec(),
            1 => b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec(),
            2 => b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n".to_vec(),
            _ => {
                let partial = ExportTracePartialSuccess { rejected_spans: 1, error_message: "no".into() };
                let body = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                [head.into_bytes(), body].concat()
            }
        }
    });
    let origin = Origin::saying("");
    let Some(proxy) = traced(Setup::to_origin(&origin), &collector.endpoint, 1.0).start() else { return };
    let counted = |name: &str, value: f64| poll(name, || (proxy.metric(name) == value).then_some(()));
    get(&proxy, "");
    counted("sluice_spans_exported_total", 2.0);
    let bodies: Vec<_> = collector.requests().into_iter().map(|request| request.body).collect();
    assert_eq!((bodies.len(), &bodies[0]), (2, &bodies[1]), "a 503 is retried with the same spans");
    get(&proxy, "");
    counted("sluice_spans_dropped_total{reason=\"failed\"}", 2.0);
    get(&proxy, "");
    counted("sluice_spans_dropped_total{reason=\"rejected\"}", 1.0);
    counted("sluice_spans_exported_total", 3.0);
}

#[test]
fn shutdown_sends_waiting_spans() {
    let (collector, origin) = (collector(), Origin::saying(""));
    let setup = traced(Setup::to_origin(&origin), &collector.endpoint, 1.0)
        .with("tracing.export_interval_ms", 600_000);
    let Some(mut proxy) = setup.start() else { return };
    get(&proxy, "");
    proxy.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(proxy.wait().success());
    assert_eq!(spans(&collector).len(), 2);
}

#[test]
fn the_path_attribute_matches_the_access_log() {
    let collector = collector();
    let body: &str = String::leak("x".repeat(100_000));
    let origin = Origin::saying(body);
    let setup = traced(Setup::to_origin(&origin), &collector.endpoint, 1.0);
    let Some(proxy) = setup.with("kernel.direct_return_bytes_min", 0).start() else { return };
    let mut client = proxy.connect();
    for _ in 0..3 {
        assert_eq!(client.ask("GET /path HTTP/1.1\r\nHost: a\r\n\r\n").body.len(), body.len());
    }
    // sluice sees the end of a direct return when the client sends another request, or soon after.
    let paths = |values: Vec<Value>| values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>();
    let logged = proxy.records(3, "/path").into_iter().map(|record| record["path"].clone()).collect();
    let spans = wait(&collector, 6);
    let servers = spans.iter().filter(|span| span.kind() == SpanKind::Server);
    let mut traced = paths(servers.map(|span| attributes(&span.attributes)["sluice.path"].clone()).collect());
    let mut logged = paths(logged);
    traced.sort();
    logged.sort();
    assert_eq!(traced, logged);
    if proxy.metric("sluice_direct_return_exchanges_total") > 0.0 {
        assert!(traced.contains(&"\"direct\"".to_owned()), "{traced:?}");
    }
}
