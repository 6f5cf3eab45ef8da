//! Tracing settings: the collector, the share of traced exchanges, and the buffer. `spans` creates and sends spans.

use super::codec::{Own, keys, number};
use super::defaults::MINUTE_MS;
use super::problem::quote;
use super::reader::Item;
use super::shape::Shape;
use super::{HttpUrl, text};

/// Maximum bytes of a service name.
const SERVICE_NAME_BYTES_MAX: usize = 255;

/// The port of OTLP over HTTP.
const DEFAULT_PORT: u16 = 4318;
/// The default path of OTLP/HTTP for spans.
const DEFAULT_PATH: &str = "/v1/traces";

/// How exchanges are traced.
#[derive(Clone, Debug, PartialEq)]
pub struct Tracing {
    /// Where spans are sent: a collector that speaks OTLP over HTTP.
    pub otlp_endpoint: HttpUrl,
    /// Name of the spans' resource (`service.name`).
    pub service_name: String,
    /// Share of the exchanges that are traced, from 0 to 1, unless a trusted proxy has decided.
    pub sample_ratio: f64,
    /// Spans that wait or are being sent; further ones are dropped and counted.
    pub buffer_spans_max: usize,
    /// Maximum spans of one request to the collector, at most `buffer_spans_max`.
    pub batch_spans_max: usize,
    /// How long spans are collected before they are sent, in milliseconds.
    pub export_interval_ms: u64,
    /// Time limit of a request to the collector, in milliseconds.
    pub export_timeout_ms: u64,
}

keys! { Tracing {
    // As in the OpenTelemetry SDKs; at most a few MB.
    buffer_spans_max: 2048, number(16..=1_000_000);
    // As above.
    batch_spans_max: 512, number(1..=10_000);
    // Traces are looked at soon after the request; a collector handles one request a second easily.
    export_interval_ms: 1000, number(10..=10 * MINUTE_MS);
    // As in the SDKs; only spans wait for it.
    export_timeout_ms: 10_000, number(10..=10 * MINUTE_MS);
    otlp_endpoint: HttpUrl::here(DEFAULT_PORT, DEFAULT_PATH), ENDPOINT;
    service_name: "sluice".to_owned(), SERVICE_NAME;
    // One in a hundred shows where time goes, and costs the others next to nothing.
    sample_ratio: 0.01, RATIO;
}}

const ENDPOINT: Own<HttpUrl> =
    Own { read: endpoint, write: |endpoint| endpoint.to_string().into(), shape: || Shape::TEXT };

const SERVICE_NAME: Own<String> =
    Own { read: service_name, write: |name| name.as_str().into(), shape: || Shape::TEXT };

pub(super) const RATIO: Own<f64> =
    Own { read: ratio, write: |ratio| (*ratio).into(), shape: || Shape::Number(0.0, 1.0) };

fn endpoint(item: &Item<'_>) -> Option<HttpUrl> {
    let url = HttpUrl::parse(item.text()?, DEFAULT_PATH).map_err(|message| item.mistake(message)).ok()?;
    text::url_path(&url.path, true).map_err(|message| item.mistake(message)).ok()?;
    Some(url)
}

fn service_name(item: &Item<'_>) -> Option<String> {
    let name = item.text()?;
    if name.len() > SERVICE_NAME_BYTES_MAX || name.chars().any(char::is_control) {
        item.mistake(format!(
            "{} is not a service name; write at most {SERVICE_NAME_BYTES_MAX} bytes of visible characters",
            quote(name)
        ));
        return None;
    }
    Some(name.to_owned())
}

fn ratio(item: &Item<'_>) -> Option<f64> {
    let ratio = item.value.as_f64().filter(|ratio| (0.0..=1.0).contains(ratio));
    if ratio.is_none() {
        item.mistake("this is not a ratio; write a number from 0 to 1, such as 0.01");
    }
    ratio
}
