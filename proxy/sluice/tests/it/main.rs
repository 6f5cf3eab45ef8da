//! The built binary on loopback sockets: a real ring, real connections, and origins and clients that exchange raw
//! bytes.
//!
//! Each test starts its own proxy, so tests do not disturb each other. Nothing here depends on timing: tests wait for
//! what must happen; what must not happen is followed by something that proves it had its chance.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod support;

mod cli;
mod forwarding;
mod files;
mod compression;
mod replies;
mod rules;
mod limits;
mod application;
mod auth;
mod tokens;
mod framing;
mod bodies;
mod buffering;
mod cache;
mod early_answers;
mod keep_alive;
mod clusters;
mod failures;
mod overload;
mod outage;
mod retries;
mod tunnels;
mod passthrough;
mod psql;
mod upstream_tls;
mod both_sides;
mod http2;
mod http3;
mod process;
mod placement;
mod signals;
mod reload;
mod certificates;
mod tls;
mod acme;
mod upgrade;
mod spellings;
mod status;
mod top;
mod services;
mod discovery;
mod doctor;
mod packaging;
mod tracing;
mod logs;
mod monitoring;
mod debug;
mod pressure;
mod below;
mod interrupted;
