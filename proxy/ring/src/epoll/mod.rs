//! The engine for hosts that deny io_uring: non-blocking calls, and tokio's epoll, which reports when to try again.
//!
//! The kernel holds nothing of ours between two calls, so a dropped or cancelled operation is simply not tried again,
//! and nothing is lost with it. The exception is a `whole` send, which continues in a task.
//!
//! Sockets stay blocking because other processes may share them. Each call asks not to wait.

mod accept;
mod call;
mod file;
mod send;
mod socket;

use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;

use tokio::runtime::{Builder, LocalOptions};

pub(crate) use accept::{AcceptOp, accept_now};
pub(crate) use file::{close, open, open_beneath, read_at, unlink, write_at};
pub(crate) use send::SendOp;
pub(crate) use socket::{RecvOp, connect, poll, when_readable};

/// Threads for files, per worker. More would wait for the same disk.
const FILE_THREADS_MAX: usize = 4;

/// Runs `future` on this thread, and leaks the runtime.
pub(crate) fn run<F: Future>(future: F) -> io::Result<F::Output> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().max_blocking_threads(FILE_THREADS_MAX);
    let runtime = ManuallyDrop::new(builder.build_local(LocalOptions::default())?);
    Ok(runtime.block_on(future))
}
