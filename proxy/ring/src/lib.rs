//! The only interface through which sluice's data path does I/O: accept, connect, receive, send, wait, files, time and
//! waking.
//!
//! Operations are futures that own what the kernel accesses: the descriptor (a counted [`Fd`]) and the buffer. A
//! dropped future leaves its operation to end by itself, and nothing is freed before that. There are three engines
//! ([`Engine`]); code above this crate does not know which one its thread uses:
//! - `uring` with sluice's own driver,
//! - `uring` with tokio-uring as its driver, for the same operations,
//! - `epoll` with tokio, for hosts and containers that deny io_uring.

mod accept;
mod beneath;
mod datagrams;
mod descriptor;
mod engine;
mod epoll;
mod file;
mod prefetch;
mod resident;
mod socket;
#[cfg(test)]
mod tests;
mod uring;

pub use accept::{AcceptOp, accept, accept_burst, accept_waiting};
pub use datagrams::when_readable;
pub use descriptor::Fd;
pub use engine::{Engine, run};
pub use file::{close, is_resident, open, open_beneath, read_at, send_file_now, unlink, write_at};
pub use prefetch::prefetch;
pub use socket::{RecvOp, SendOp, connect, poll, recv, recv_lent, send};
pub use uring::{RingError, operations, probe, probe_tokio_uring};
