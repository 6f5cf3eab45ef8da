//! The shared cache: what comes from it, what does not, and who asks the application.

mod collapsing;
mod disk;
mod encoded;
mod poisoning;
mod purging;
mod storing;
mod validating;

use serde_json::{Value, json};

use crate::support::{Message, Origin, Proxy, Setup};

/// A request with these fields.
fn get(proxy: &Proxy, target: &str, fields: &str) -> Message {
    proxy.ask(request(target, fields))
}

fn request(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")
}

/// A response with these fields.
fn response(fields: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    answer("200 OK", fields, body)
}

fn answer(status: &str, fields: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A proxy whose only route has a cache with these settings.
fn caching(origin: &Origin, cache: Value) -> Setup {
    let setup = Setup::to_origin(origin).with("caches", json!({"pages": cache}));
    setup.with("routes", json!([{"name": "app", "cluster": "default", "cache": "pages"}]))
}

fn serve(origin: &Origin, cache: Value) -> Option<Proxy> {
    caching(origin, cache).start()
}

/// What Cache-Status says.
fn told(message: &Message) -> &str {
    message.get("cache-status").unwrap_or("nothing")
}

fn is_hit(message: &Message) -> bool {
    told(message).starts_with("sluice; hit")
}
