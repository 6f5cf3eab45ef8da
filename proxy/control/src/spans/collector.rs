//! One request to the collector (OTLP over HTTP, protobuf), and the meaning of its response.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use sluice_config::HttpUrl;
use tokio::time::timeout;

use crate::outbound;

/// Maximum bytes of a response that are read.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Why spans were not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// Connecting failed, or the connection broke.
    #[error("the connection failed: {0}")]
    Connection(io::Error),
    /// The response is not HTTP, or ended too early.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The collector was too slow.
    #[error("no response within {0} ms")]
    Timeout(u64),
    /// The collector refused them.
    #[error("status {status}")]
    Status {
        /// The status of the response.
        status: StatusCode,
        /// When to try again, if the collector says so.
        retry_after: Option<Duration>,
    },
}

impl Refused {
    /// Whether the same spans may be sent again ("Failures" in the OTLP/HTTP specification).
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Refused::Status { status, .. } => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            _ => true,
        }
    }

    /// How long to wait before the next request, if the collector says so.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Refused::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Sends spans; returns how many the collector rejected although it accepted the others.
pub(super) async fn send(to: &HttpUrl, body: Bytes, patience_ms: u64) -> Result<u64, Refused> {
    let sent = timeout(Duration::from_millis(patience_ms), exchange(to, body)).await;
    sent.unwrap_or(Err(Refused::Timeout(patience_ms)))
}

/// Uses a new connection: there is about one request a second, and an idle connection would have to be managed.
async fn exchange(to: &HttpUrl, body: Bytes) -> Result<u64, Refused> {
    let stream = outbound::connect(to).await.map_err(Refused::Connection)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let request = Request::post(&to.path)
        .header(HOST, to.authority())
        .header(USER_AGENT, concat!("sluice/", env!("CARGO_PKG_VERSION")))
        .header(CONTENT_TYPE, "application/x-protobuf")
        .header(CONNECTION, "close")
        .body(Full::new(body))
        .map_err(|error| Refused::Connection(io::Error::other(error)))?;
    let asked = async {
        let answer = sender.send_request(request).await?;
        judge(answer).await
    };
    // The result of the connection adds nothing: the request reports every error that matters.
    let (answer, _) = tokio::join!(asked, connection);
    answer
}

async fn judge(answer: Response<hyper::body::Incoming>) -> Result<u64, Refused> {
    let status = answer.status();
    let retry_after = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    if !status.is_success() {
        return Err(Refused::Status { status, retry_after: retry_after.map(Duration::from_secs) });
    }
    // An unreadable body of a success is not a failure: the spans were accepted.
    let Ok(body) = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await else {
        return Ok(0);
    };
    let partial =
        ExportTraceServiceResponse::decode(body.to_bytes()).ok().and_then(|said| said.partial_success);
    Ok(partial.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0)))
}
