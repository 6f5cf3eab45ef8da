//! The responses of the control socket: requests are mapped to methods of an [`Api`], results to JSON.

use std::path::PathBuf;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::operations;

/// Maximum bytes of a request body.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The path of the banned addresses.
pub const BANS: &str = "/v1/bans";

/// The path of the caches.
pub const CACHES: &str = "/v1/caches";

/// The path of the fleet.
pub const FLEET: &str = "/v1/fleet";

/// Maximum time to wait for a new process.
const UPGRADE_TIMEOUT_MS_MAX: u64 = 3_600_000;

/// A failed request: the status, and the body.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    body: Value,
}

impl Failure {
    /// A failure with a sentence.
    pub(crate) fn new(status: StatusCode, message: &str) -> Self {
        Self { status, body: json!({ "error": message }) }
    }

    /// A failure with its own body.
    pub(crate) fn with(status: StatusCode, body: Value) -> Self {
        Self { status, body }
    }

    /// A failure with each mistake of a configuration.
    pub(crate) fn mistakes(message: &str, mistakes: &[String]) -> Self {
        let body = json!({ "error": message, "mistakes": mistakes });
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, body }
    }
}

/// The operations.
pub(crate) trait Api {
    /// `POST /v1/reload`: reads the configuration again.
    async fn reload(&self) -> Result<Value, Failure>;

    /// `POST /v1/upgrade`: hands over to a new process.
    async fn upgrade(&self, wanted: Upgrade) -> Result<Value, Failure>;

    /// `/v1/bans` and the path of each ban.
    async fn bans(&self, method: &Method, path: &str, body: &[u8]) -> Result<Value, Failure>;

    /// `/v1/caches` and what is below it.
    async fn caches(&self, method: &Method, path: &str, body: &[u8]) -> Result<Value, Failure>;

    /// `GET /v1/fleet`: the members of the fleet.
    async fn fleet(&self) -> Result<Value, Failure>;

    /// `/v1/services` and all paths below it; see [`sluice_core::service::api`].
    async fn services(&self, method: &Method, path: &str, body: &[u8]) -> Result<Value, Failure>;
}

/// Parameters of an upgrade.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Upgrade {
    /// The binary to start instead of the running one.
    pub(crate) binary: Option<PathBuf>,
    /// Time limit until it serves, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
}

impl Upgrade {
    /// Refuses invalid parameters.
    fn checked(self) -> Result<Self, Failure> {
        let refused = |message: &str| Err(Failure::new(StatusCode::BAD_REQUEST, message));
        // This process has another working directory and PATH than the caller.
        if self.binary.as_ref().is_some_and(|binary| !binary.is_absolute()) {
            return refused("binary: write an absolute path");
        }
        // The kernel reads 0 as no limit.
        if self.timeout_ms.is_some_and(|timeout| !(1..=UPGRADE_TIMEOUT_MS_MAX).contains(&timeout)) {
            return refused("timeout_ms: write a number from 1 to 3600000");
        }
        Ok(self)
    }
}

/// Responds to one request.
pub(super) async fn answer(api: &impl Api, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let (path, method) = (head.uri.path(), &head.method);
    let allowed = operations::methods(path);
    if allowed.is_empty() {
        return fail(&Failure::new(StatusCode::NOT_FOUND, "no such operation"));
    }
    if !allowed.contains(&method.as_str()) {
        return not_allowed(&allowed.join(", "));
    }
    let body = match whole(body).await {
        Ok(body) => body,
        Err(failure) => return fail(&failure),
    };
    let outcome = match path {
        "/v1/reload" => api.reload().await,
        "/v1/upgrade" => match read::<Upgrade>(&body).and_then(Upgrade::checked) {
            Ok(wanted) => api.upgrade(wanted).await,
            Err(failure) => Err(failure),
        },
        path if path == BANS || path.starts_with("/v1/bans/") => api.bans(method, path, &body).await,
        FLEET => api.fleet().await,
        path if path.starts_with(CACHES) => api.caches(method, path, &body).await,
        path => api.services(method, path, &body).await,
    };
    match outcome {
        Ok(value) => response(StatusCode::OK, &value),
        Err(failure) => fail(&failure),
    }
}

async fn whole(body: Incoming) -> Result<Bytes, Failure> {
    match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the request body has more than {BODY_BYTES_MAX} bytes");
            Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, &message))
        }
        Err(error) => Err(Failure::new(StatusCode::BAD_REQUEST, &error.to_string())),
    }
}

/// Parses a body; an empty one has all defaults.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read<T: DeserializeOwned + Serialize + Default>(body: &[u8]) -> Result<T, Failure> {
    if body.is_empty() {
        return Ok(T::default());
    }
    let refused = |error: &dyn std::fmt::Display| {
        Failure::new(StatusCode::BAD_REQUEST, &format!("request body: {error}"))
    };
    let mut unknown = Vec::new();
    let mut parser = serde_json::Deserializer::from_slice(body);
    // The types ignore unknown keys, because state files of later releases may contain them.
    let value: T = serde_ignored::deserialize(&mut parser, |path| unknown.push(path.to_string()))
        .and_then(|value| parser.end().map(|()| value))
        .map_err(|error| refused(&error))?;
    if let Some(unknown) = unknown.first() {
        return Err(refused(&format!("{unknown}: unknown key")));
    }
    let given: Value = serde_json::from_slice(body).map_err(|error| refused(&error))?;
    let whole = serde_json::to_value(&value).map_err(|error| refused(&error))?;
    match array_for_object(&given, &whole) {
        Some(path) => Err(refused(&format!("{path}: write an object"))),
        None => Ok(value),
    }
}

/// The path of an array where an object is expected. serde reads an array as an object whose keys are left out.
fn array_for_object(given: &Value, whole: &Value) -> Option<String> {
    let whole = whole.as_object()?;
    let Some(given) = given.as_object() else {
        return Some("$".to_owned());
    };
    let inner =
        |(key, value)| Some(array_for_object(value, whole.get(key)?)?.replacen('$', &format!("$.{key}"), 1));
    given.iter().find_map(inner)
}

fn not_allowed(allowed: &str) -> Response<Full<Bytes>> {
    let message = format!("method not allowed; use {allowed}");
    let mut response = fail(&Failure::new(StatusCode::METHOD_NOT_ALLOWED, &message));
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(ALLOW, allowed);
    }
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
