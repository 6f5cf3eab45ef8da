//! sluice: a reverse proxy for HTTP/1.1 on io_uring.
//!
//! Modules are declared in the order in which a request meets them; `connection` is the file to read first.

pub mod http;

pub mod config;
pub mod error;
