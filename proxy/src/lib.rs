//! sluice: a reverse proxy for HTTP/1.1 on io_uring.
//!
//! A connection is accepted by a worker's `thread` (`listener`), lives in `connection`, where each request becomes
//! an `exchange` with an `upstream` connection. Modules are declared in the order in which a request
//! meets them; `connection` is the file to read first, and `ARCHITECTURE.md` is the map.

// -- the data path, in the order a request meets it --
pub(crate) mod thread;
pub(crate) mod worker;
pub(crate) mod http2;
pub(crate) mod connection;
pub(crate) mod upstream;
pub(crate) mod bypass;
pub(crate) mod direct;
pub(crate) mod exchange;
pub(crate) mod body;
pub(crate) mod spool;
pub(crate) mod tunnel;
pub(crate) mod response;
pub(crate) mod debug;
pub(crate) mod progress;

// -- the control plane --
pub mod server;
pub(crate) mod snapshot;
pub mod health;
pub mod resolve;
pub mod acme;
pub mod state_file;
pub mod admin;
pub mod control;
pub mod handover;
pub mod healthcheck;
pub mod status;
pub mod top;
pub mod demo;
pub mod logs;
pub mod doctor;
pub mod advice;
pub mod surroundings;

// -- the kernel, beyond sockets and rings --
