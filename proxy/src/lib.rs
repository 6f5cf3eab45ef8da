//! sluice: a reverse proxy for HTTP/1.1 on io_uring.
//!
//! A connection is accepted by a worker's `thread` (`listener`), lives in `connection`, where each request becomes
//! an `exchange` with an `upstream` connection. Modules are declared in the order in which a request
//! meets them; `connection` is the file to read first, and `ARCHITECTURE.md` is the map.

// -- the data path, in the order a request meets it --

// -- the control plane --
pub mod server;
pub mod health;
pub mod resolve;
pub mod acme;
pub mod state_file;
pub mod admin;
pub mod commands;
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
