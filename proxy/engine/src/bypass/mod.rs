//! Upstream connections on this host, joined past loopback TCP: which of them, and what becomes of them.
//!
//! `kernel::program` moves the bytes; here is the policy. What goes towards an application is joined whole or not at
//! all: a request goes over a joined connection only if it is whole in memory and fits, and connections that were
//! not joined in their handshake are replaced. Until an endpoint has answered over one, only requests that may be sent
//! twice are tried with it, one at a time. Both kinds have an idle pool of their own.

mod control;
mod error;
mod joiner;
mod place;

pub use control::{Control, start};
pub use error::BypassError;
pub(crate) use joiner::{Candidate, Joined, Joiner, JoinerConfig, Plan};
