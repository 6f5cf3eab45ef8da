//! The one door through which sluice's data path does I/O: accept, connect, receive, send, wait, files, time and waking.
//!
//! Operations are futures that own what the kernel touches: the descriptor (a counted [`Fd`]) and the buffer. A future that
//! is dropped leaves its operation to end by itself; nothing is freed before. Nobody above this crate knows what engine is
//! behind it: today a driver of our own for io_uring (`uring`).

mod uring;

pub use uring::{
    AcceptOp, Fd, RecvOp, RingError, SendOp, accept, accept_burst, accept_waiting, close, connect, dispatch,
    open, operations, poll, probe, read_at, recv, run, send, unlink, write_at,
};
