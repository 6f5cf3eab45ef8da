//! The data path: a worker's `thread` accepts a connection, which lives in `connection`; each of its requests becomes
//! an `exchange` with an `upstream` connection.
//!
//! Read `connection` first. Modules are declared in the order in which a request meets them.

pub mod thread;
pub mod worker;
pub(crate) mod cache;
mod compress;
mod connection;
pub(crate) mod http2;
mod http3;
pub(crate) mod exchange;
mod files;
pub mod upstream;
pub(crate) mod body;
mod body_kind;
pub(crate) mod spool;
pub mod tunnel;
pub mod response;
pub(crate) mod opening;
pub mod bypass;
pub mod barrier;
pub(crate) mod direct;
mod shared_connection;
pub mod snapshot;
pub mod equipment;
pub mod authority;
mod guard;
mod templates;
pub(crate) mod progress;
pub(crate) mod endpoint;
pub(crate) mod debug;
pub mod detour;
mod assist_error;

pub use assist_error::AssistError;
