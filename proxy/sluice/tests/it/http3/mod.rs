//! HTTP/3: the `h3` crate over quinn as the client, and raw frames where it is too correct.

mod bounds;
mod changes;
mod client;
mod ends;
mod exchanges;
mod frames;
mod network;
mod raw;

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
    listener.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let proxy = setup.with("listeners", json!([listener])).start()?;
    Some(Site { proxy, authority })
}
