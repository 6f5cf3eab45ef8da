//! The parts of sluice that do not touch the wire: routing, queueing, counting and logging, and the TLS material that
//! sessions are created from.
//!
//! This crate reads and writes no socket of a client or an endpoint, and does not use a ring. `sluice_engine` moves the
//! bytes, `sluice_control` applies configurations.

// -- where a request goes --
pub mod router;
pub mod cluster;
pub mod balancer;
pub mod queue;
pub mod service;
pub mod forwarded;
pub mod small_file;
pub mod access;
pub mod http_challenges;
pub mod rate_limit;
pub mod bans;
pub mod client_places;
pub mod cors;
pub mod auth;
pub mod tls;

// -- what is recorded of it --
pub mod error;
pub mod record;
pub mod access_log;
pub mod spans;
pub mod metrics;
pub mod logging;

// -- what all of these use --
pub mod budget;
pub mod client;
pub mod clock;
pub mod durable;
pub mod html;
