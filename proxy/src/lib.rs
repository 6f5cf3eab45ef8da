//! sluice: a reverse proxy for HTTP/1.1 on io_uring.
//!
//! Modules are declared in the order in which a request meets them; `connection` is the file to read first.

pub mod http;
pub mod router;
pub mod cluster;
pub(crate) mod balancer;

pub mod error;
pub mod record;
pub mod access_log;
pub mod metrics;

pub mod config;
pub mod health;
pub mod resolve;
pub mod state_file;
pub mod admin;
pub mod demo;
pub mod logging;
