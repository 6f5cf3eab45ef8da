//! The paths of the demo origin.

use super::BadParameter;
use std::fmt::Write;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tokio::sync::mpsc;

use super::body::DemoBody;
use super::{plain, text, websocket};

/// Maximum delay or interval, in milliseconds.
const MS_MAX: u64 = 60_000;
/// Maximum size of `/bytes`.
const BYTES_MAX: u64 = 10 << 30;
/// Maximum lines of `/stream`.
const LINES_MAX: u64 = 100_000;

const INDEX: &str = "\
Hello from sluice's demo origin.

/            this page
/echo        your request as text; a body is sent back unchanged
/delay?ms=N  a response after N milliseconds (at most 60000)
/stream      lines over time: ?n= how many, ?ms= interval; server-sent events if you Accept them
/bytes?n=N   N bytes (at most 10 GiB)
/status?code=N
/ws          a WebSocket that echoes

Your request, as it arrived:

";

/// Responds to one request.
pub(super) async fn answer(mut request: Request<Incoming>) -> Response<DemoBody> {
    let asked = match request.uri().path() {
        "/" => Ok(text(StatusCode::OK, INDEX.to_owned() + &head(&request))),
        "/echo" => Ok(echo(request)),
        "/delay" => delay(&request).await,
        "/stream" => stream(&request),
        "/bytes" => bytes(&request),
        "/status" => status(&request),
        "/ws" => Ok(websocket::upgrade(&mut request)),
        _ => Ok(text(StatusCode::NOT_FOUND, "not found; / lists all paths\n")),
    };
    asked.unwrap_or_else(|mistake| text(StatusCode::BAD_REQUEST, format!("{mistake}\n")))
}

/// The request head as text. Field names are in lower case, as the library stores them.
fn head<B>(request: &Request<B>) -> String {
    let mut head = format!("{} {} {:?}\n", request.method(), request.uri(), request.version());
    for (name, value) in request.headers() {
        writeln!(head, "{name}: {}", String::from_utf8_lossy(value.as_bytes()))
            .expect("writing to a String does not fail");
    }
    head
}

fn echo(request: Request<Incoming>) -> Response<DemoBody> {
    if request.body().is_end_stream() {
        return text(StatusCode::OK, head(&request));
    }
    let (head, body) = request.into_parts();
    let mut response = plain(StatusCode::OK, DemoBody::Echo(body));
    let unknown = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, head.headers.get(CONTENT_TYPE).cloned().unwrap_or(unknown));
    response
}

async fn delay<B>(request: &Request<B>) -> Result<Response<DemoBody>, BadParameter> {
    let ms = parameter(request, "ms", 1_000, 0, MS_MAX)?;
    tokio::time::sleep(Duration::from_millis(ms)).await;
    Ok(text(StatusCode::OK, format!("after {ms} ms\n")))
}

fn stream<B>(request: &Request<B>) -> Result<Response<DemoBody>, BadParameter> {
    let lines = parameter(request, "n", 10, 0, LINES_MAX)?;
    let ms = parameter(request, "ms", 100, 0, MS_MAX)?;
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let events = accept.contains("text/event-stream");
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        for n in 1..=lines {
            if n > 1 {
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            let line = if events { format!("id: {n}\ndata: line {n}\n\n") } else { format!("line {n}\n") };
            // The client has gone, so the rest is not needed.
            if sender.send(Bytes::from(line)).await.is_err() {
                return;
            }
        }
    });
    let mut response = text(StatusCode::OK, "");
    *response.body_mut() = DemoBody::Pieces(pieces);
    if events {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    Ok(response)
}

fn bytes<B>(request: &Request<B>) -> Result<Response<DemoBody>, BadParameter> {
    let n = parameter(request, "n", 1_024, 0, BYTES_MAX)?;
    let mut response = plain(StatusCode::OK, DemoBody::Repeat(n));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    Ok(response)
}

fn status<B>(request: &Request<B>) -> Result<Response<DemoBody>, BadParameter> {
    let code = parameter(request, "code", 200, 200, 599)?;
    let status = StatusCode::from_u16(code).map_err(|error| error.to_string())?;
    // RFC 9110 6.4.1: no content for these statuses, and no field that describes it.
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok(plain(status, DemoBody::Whole(Bytes::new())));
    }
    Ok(text(status, format!("{status}\n")))
}

/// A number from the query, or its default.
fn parameter<B, N>(request: &Request<B>, name: &str, default: N, min: N, max: N) -> Result<N, BadParameter>
where
    N: FromStr + PartialOrd + std::fmt::Display,
{
    let query = request.uri().query().unwrap_or_default();
    let found = query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name));
    let Some((_, value)) = found else {
        return Ok(default);
    };
    let number = value.parse().ok().filter(|number| (&min..=&max).contains(&number));
    number.ok_or_else(|| format!("{name} must be a number from {min} to {max}").into())
}
