//! HTTP/2 by prior knowledge, from clients and to endpoints: the `h2` crate as the other side, and frames written by hand
//! where it would not.

mod bounds;
mod cancels;
mod client;
mod ends;
mod exchanges;
mod frames;
mod heads;
mod server;
mod shared;
mod streams;
mod upstream;

use crate::support::{Origin, Proxy, Setup};

/// A proxy whose listener takes both versions.
fn setup(origin: &Origin) -> Setup {
    Setup::to_origin(origin).with("listeners.0.http2", "prior_knowledge")
}

/// The value of the counter of connections ended for this.
fn abuses(proxy: &Proxy, reason: &str) -> f64 {
    proxy.metric(&format!("sluice_http2_abuses_total{{reason=\"{reason}\"}}"))
}
