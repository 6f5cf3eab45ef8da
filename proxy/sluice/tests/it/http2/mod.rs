//! HTTP/2 with prior knowledge, from clients and to endpoints: the `h2` crate as the peer, and raw frames where it is
//! too correct.

mod bounds;
mod cancels;
mod cache;
mod client;
mod ends;
mod files;
mod exchanges;
mod frames;
mod heads;
mod server;
mod shared;
mod streams;
mod upstream;

use crate::support::{Origin, Proxy, Setup};

/// A proxy whose listener accepts both versions.
fn setup(origin: &Origin) -> Setup {
    Setup::to_origin(origin).with("listeners.0.http2", "prior_knowledge")
}

/// The counter of connections closed for this reason.
fn abuses(proxy: &Proxy, reason: &str) -> f64 {
    proxy.metric(&format!("sluice_http2_abuses_total{{reason=\"{reason}\"}}"))
}
