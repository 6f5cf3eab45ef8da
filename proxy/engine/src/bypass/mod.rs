//! Upstream connections on this host, joined past loopback TCP: which connections are joined, and when.
//!
//! `kernel::program` moves the bytes; this module is the policy. Bytes towards an application are joined completely or
//! not at all: a request uses a joined connection only if it is completely in memory and small enough, and connections
//! that were not joined in their handshake are replaced. Until an endpoint has responded over a joined connection, only
//! requests that may be sent twice use one, one at a time. Joined and ordinary connections have separate idle pools.

mod control;
mod error;
mod joiner;
mod place;

pub use control::{Control, start};
pub use error::BypassError;
pub(crate) use joiner::{Candidate, Joined, Joiner, JoinerConfig, Plan};
