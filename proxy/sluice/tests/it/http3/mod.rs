//! HTTP/3: the `h3` crate over quinn as the client, and raw frames where it is too correct.

mod bounds;
mod changes;
mod client;
mod early;
mod ends;
mod exchanges;
mod frames;
mod network;
mod raw;
mod recordings;

use serde_json::json;

use crate::support::{Authority, Proxy, Setup};

/// A proxy with a listener `main` that speaks HTTP/3 for a.test, and the authority that its clients trust.
struct Site {
    proxy: Proxy,
    authority: Authority,
}

/// Starts it; `None` if this host has not the engine.
fn start(setup: Setup) -> Option<Site> {
    start_with(setup, json!({}))
}

/// The same, with more keys of the listener.
fn start_with(setup: Setup, keys: serde_json::Value) -> Option<Site> {
    let authority = Authority::new();
    let identity = authority.identity(&["a.test"]);
    let cert = setup.file("a.pem", &identity.cert_pem);
    let key = setup.file("a.key", &identity.key_pem);
    let mut listener = json!({
        "name": "main",
        "address": "127.0.0.1:0",
        "http3": "auto",
        "tls": {"certificates": [{"cert": cert, "key": key}]},
    });
    for (name, value) in keys.as_object().unwrap().clone() {
        match (listener.get_mut(&name).and_then(|known| known.as_object_mut()), value) {
            (Some(known), serde_json::Value::Object(more)) => known.extend(more),
            (_, value) => listener[name] = value,
        }
    }
    let proxy = setup.with("listeners", json!([listener])).start()?;
    Some(Site { proxy, authority })
}
