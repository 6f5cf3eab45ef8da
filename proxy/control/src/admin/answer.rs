//! The responses of the admin listener, by path.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY, VARY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use sluice_core::metrics::{self, Metrics, classic};

use super::events::Lease;
use super::gate::Refusal;
use super::{AdminState, Body};
use crate::status::page;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const OPEN_METRICS: HeaderValue = HeaderValue::from_static(metrics::CONTENT_TYPE);
const CLASSIC_METRICS: HeaderValue = HeaderValue::from_static(classic::CONTENT_TYPE);

/// Policy of responses other than the page.
const NO_CONTENT_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

pub(super) const INDEX: &str = "\
sluice admin

/status       the status page, for browsers
/status.json  its data, as JSON
/events       the same every second, as server-sent events
/healthz      ok, or 503 while draining
/metrics      metrics for Prometheus, or OpenMetrics if requested
/clusters     clusters and their endpoints, as JSON
/config       the effective configuration, as JSON
";

const PATHS: [&str; 8] =
    ["/", "/status", "/status.json", "/events", "/healthz", "/metrics", "/clusters", "/config"];

/// Paths that show no secret: their names and addresses are those of the configuration.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/metrics"];

/// The response to a request.
pub(super) fn answer<B>(request: &Request<B>, state: &AdminState, lease: &Lease) -> Response<Body> {
    let path = request.uri().path();
    let page = path == "/status" || path == "/" && wants_html(request);
    // The page itself contains no data; it asks the user for the token and then requests the data with it.
    if let Err(refusal) = state.gate.check(request, !page) {
        return refuse(refusal);
    }
    if state.metrics_only && !OPEN_PATHS.contains(&path) {
        return response(StatusCode::NOT_FOUND, TEXT, "not found; this listener has /metrics and /healthz\n");
    }
    if !PATHS.contains(&path) {
        return response(StatusCode::NOT_FOUND, TEXT, "not found; / lists all paths\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "use GET or HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        _ if page => page_response(),
        "/status.json" => response(StatusCode::OK, JSON, state.live.json()),
        "/events" if *request.method() == Method::HEAD => response(StatusCode::OK, EVENTS, ""),
        "/events" => events(state, lease),
        "/healthz" if state.draining.load(Relaxed) => {
            response(StatusCode::SERVICE_UNAVAILABLE, TEXT, "draining\n")
        }
        "/healthz" => response(StatusCode::OK, TEXT, "ok\n"),
        "/metrics" => metrics_response(request, &state.metrics),
        "/clusters" => json(&(state.clusters)()),
        "/config" => json(&(state.config)()),
        _ => {
            let mut response = response(StatusCode::OK, TEXT, INDEX);
            response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
            response
        }
    }
}

/// Browsers list text/html in Accept; curl and similar clients accept anything.
fn wants_html<B>(request: &Request<B>) -> bool {
    accept(request).to_ascii_lowercase().contains("text/html")
}

fn accept<B>(request: &Request<B>) -> &str {
    request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default()
}

/// In the requested format (RFC 9110 section 12.5.1).
fn metrics_response<B>(request: &Request<B>, metrics: &Metrics) -> Response<Body> {
    let text = metrics.render();
    let mut response = if classic::wants_open_metrics(accept(request)) {
        response(StatusCode::OK, OPEN_METRICS, text)
    } else {
        response(StatusCode::OK, CLASSIC_METRICS, classic::from_open_metrics(&text))
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    response
}

fn refuse(refusal: Refusal) -> Response<Body> {
    let (status, sentence) = refusal.answer();
    let status = StatusCode::from_u16(status).expect("a valid status");
    let mut response = response(status, TEXT, sentence);
    if refusal == Refusal::Token {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn events(state: &AdminState, lease: &Lease) -> Response<Body> {
    match state.streams.open(&state.live, lease.clone()) {
        Some(body) => with_body(StatusCode::OK, EVENTS, body),
        None => response(
            StatusCode::SERVICE_UNAVAILABLE,
            TEXT,
            "too many streams are open; close one, or request /status.json\n",
        ),
    }
}

fn page_response() -> Response<Body> {
    let mut response = response(StatusCode::OK, HTML, page::HTML);
    let policy = HeaderValue::from_str(&page::POLICY).expect("base64 hashes and plain words");
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    response
}

fn json(value: &serde_json::Value) -> Response<Body> {
    response(StatusCode::OK, JSON, format!("{value:#}\n"))
}

fn response(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    with_body(status, content_type, Full::new(body.into()).boxed_unsync())
}

fn with_body(status: StatusCode, content_type: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(NO_CONTENT_POLICY));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}
