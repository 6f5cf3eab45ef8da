//! What the control socket answers: requests to methods of an [`Api`], results to JSON.

use std::path::PathBuf;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Bytes of a request body.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Something that did not work: the status, and what is said about it.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    body: Value,
}

impl Failure {
    /// With a sentence.
    pub(crate) fn new(status: StatusCode, message: &str) -> Self {
        Self { status, body: json!({ "error": message }) }
    }

    /// With a body of its own.
    pub(crate) fn with(status: StatusCode, body: Value) -> Self {
        Self { status, body }
    }

    /// With each mistake of a configuration.
    pub(crate) fn mistakes(message: &str, mistakes: &[String]) -> Self {
        let body = json!({ "error": message, "mistakes": mistakes });
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, body }
    }
}

/// What can be asked for.
pub(crate) trait Api {
    /// `POST /v1/reload`: reads the configuration again.
    async fn reload(&self) -> Result<Value, Failure>;

    /// `POST /v1/upgrade`: has another process take over.
    async fn upgrade(&self, wanted: Upgrade) -> Result<Value, Failure>;

    /// `/v1/services` and all below it; see [`crate::service::api`].
    async fn services(&self, method: &Method, path: &str, body: &[u8]) -> Result<Value, Failure>;
}

/// How to upgrade.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upgrade {
    /// The binary to start in place of the one that runs.
    pub(crate) binary: Option<PathBuf>,
    /// How long it may take to serve, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
}

/// Answers one request.
pub(super) async fn answer(api: &impl Api, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return fail(&Failure::new(StatusCode::BAD_REQUEST, &error.to_string())),
    };
    let path = head.uri.path();
    let outcome = match (path, &head.method) {
        ("/v1/reload", &Method::POST) => api.reload().await,
        ("/v1/upgrade", &Method::POST) => match read(&body) {
            Ok(wanted) => api.upgrade(wanted).await,
            Err(failure) => Err(failure),
        },
        ("/v1/reload" | "/v1/upgrade", _) => return not_allowed("POST"),
        (path, method) if path.starts_with("/v1/services") => api.services(method, path, &body).await,
        _ => Err(Failure::new(StatusCode::NOT_FOUND, "there is no such operation")),
    };
    match outcome {
        Ok(value) => response(StatusCode::OK, &value),
        Err(failure) => fail(&failure),
    }
}

/// What a body asks for; an empty one asks for nothing special.
fn read<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Failure> {
    if body.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body)
        .map_err(|error| Failure::new(StatusCode::BAD_REQUEST, &format!("the body: {error}")))
}

fn not_allowed(allowed: &'static str) -> Response<Full<Bytes>> {
    let message = format!("only {allowed}");
    let mut response = fail(&Failure::new(StatusCode::METHOD_NOT_ALLOWED, &message));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

fn fail(failure: &Failure) -> Response<Full<Bytes>> {
    response(failure.status, &failure.body)
}

fn response(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{body}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
