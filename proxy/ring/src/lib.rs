//! The one door through which sluice's data path does I/O: accept, connect, receive, send, wait, files, time and waking.
//!
//! Operations are futures that own what the kernel touches: the descriptor (a counted [`Fd`]) and the buffer. A future that
//! is dropped leaves its operation to end by itself; nothing is freed before. Three engines stand behind the door
//! ([`Engine`]); nobody above this crate knows which one a thread runs on:
//! - `uring` with a driver of our own,
//! - `uring` with tokio-uring as its driver: the same operations,
//! - `epoll` by tokio, for hosts and containers that deny io_uring.

mod accept;
mod descriptor;
mod engine;
mod epoll;
mod file;
mod socket;
#[cfg(test)]
mod tests;
mod uring;

pub use accept::{AcceptOp, accept, accept_burst, accept_waiting};
pub use descriptor::Fd;
pub use engine::{Engine, dispatch, run};
pub use file::{close, open, read_at, unlink, write_at};
pub use socket::{RecvOp, SendOp, connect, poll, recv, send};
pub use uring::{RingError, operations, probe, probe_tokio_uring};
