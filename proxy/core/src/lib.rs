//! What every part of sluice above the wire stands on: where a request goes, who waits for room, what is counted and
//! logged of it, and the TLS material that sessions are made from.
//!
//! No socket of a client or an endpoint is read or written here, and no ring is known. `sluice_engine` moves the
//! bytes, `sluice_control` puts configurations in force.

// -- where a request goes --
pub mod router;
pub mod cluster;
pub mod balancer;
pub mod queue;
pub mod service;
pub mod forwarded;
pub mod http_challenges;
pub mod tls;

// -- what becomes known of it --
pub mod error;
pub mod record;
pub mod access_log;
pub mod spans;
pub mod metrics;
pub mod logging;

// -- what all of these use --
pub mod budget;
pub mod clock;
pub mod durable;
pub mod html;
