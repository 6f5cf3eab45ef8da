//! The ring of a worker, and its operations as futures that own what the kernel accesses.
//!
//! Every operation keeps its descriptor (a counted [`Fd`]) and its buffer in the operation's stable data. Only receives of
//! idle connections have no buffer: the kernel takes one of the ring's, which are never freed ([`lender`]). The driver,
//! ours ([`driver`]) or tokio-uring's ([`guest`]), keeps that data until the completion has arrived, even if the future
//! is dropped first. So no buffer is freed and no descriptor number is reused while the kernel uses it. [`run`] leaks
//! the ring and the runtime, which end with the process, like operations still in progress then.
#![allow(unsafe_code, reason = "completions carry raw descriptors and lengths of kernel-filled buffers")]

mod accept;
mod driver;
mod file;
mod guest;
mod lender;
mod probe;
mod socket;
mod table;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use io_uring::{IoUring, squeue, types};
use tokio::runtime::LocalOptions;

use super::{Engine, Fd};
use driver::Driver;
use table::Completion;

pub(crate) use accept::{AcceptOp, accept, accept_burst, accept_waiting};
pub(crate) use file::{close, open, open_beneath, read_at, unlink, write_at};
pub(crate) use guest::run as run_on_tokio_uring;
pub use probe::{RingError, operations, probe, probe_tokio_uring};
pub(crate) use socket::{LentOp, RecvOp, SendOp, connect, poll, recv, recv_lent, send};

/// Entries of a worker's submission queue. The completion queue has four times as many.
const ENTRIES: u32 = 1024;

/// Runs `future` on a new ring, on this thread, and leaks the ring.
///
/// # Errors
/// The ring cannot be created, or waiting on it failed.
pub(crate) fn run<F: Future>(future: F) -> io::Result<F::Output> {
    let (ring, shows_work) = make()?;
    let driver = Driver::install(ring, shows_work);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let hand_out = || {
        Driver::current().dispatch();
    };
    let runtime = builder.enable_all().on_thread_unpark(hand_out).build_local(LocalOptions::default())?;
    let runtime = std::mem::ManuallyDrop::new(runtime);
    let pump = runtime.spawn_local(driver.pump());
    runtime.block_on(async {
        tokio::select! {
            biased;
            output = future => Ok(output),
            ended = pump => match ended {
                Ok(Err(error)) => Err(error),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Ok(Ok(())) | Err(_) => Err(io::Error::other("ring driver task exited")),
            },
        }
    })
}

/// A ring, and whether it was set up with TASKRUN_FLAG.
fn make() -> io::Result<(IoUring, bool)> {
    let mut builder = IoUring::builder();
    // COOP_TASKRUN (5.19) saves the inter-processor interrupt at each completion, and TASKRUN_FLAG shows that the kernel
    // waits for this thread to enter it; SINGLE_ISSUER (6.0) saves the locking.
    builder.setup_cqsize(ENTRIES * 4).setup_coop_taskrun().setup_taskrun_flag().setup_single_issuer();
    match builder.build(ENTRIES) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ok((IoUring::builder().setup_cqsize(ENTRIES * 4).build(ENTRIES)?, false))
        }
        made => Ok((made?, true)),
    }
}

/// Delivers completions without waiting for the driver's turn. tokio-uring's cannot be asked to.
pub(crate) fn dispatch() {
    if Engine::current() == Engine::IoUring {
        Driver::current().dispatch();
    }
}

/// Whether this thread's ring lends buffers.
#[cfg(test)]
pub(crate) fn has_lender() -> bool {
    Driver::lender_here().is_some()
}

fn raw(fd: &Fd) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

/// The outcome that a completion's result encodes.
fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()))
}

/// The outcome of an operation whose completion may have been lost.
fn lost() -> io::Error {
    io::Error::from_raw_os_error(libc::ECANCELED)
}

/// Data of an operation, and how it becomes the outcome.
trait Finished: Unpin + Sized + 'static {
    /// Whether the result is a descriptor, which must be closed if no future receives it.
    const BRINGS_DESCRIPTOR: bool = false;
    /// The outcome for the caller.
    type Output;
    /// Turns the data and the completion into the outcome.
    fn finish(self, completion: Completion) -> Self::Output;
    /// The outcome without data, if the completion may have been lost.
    fn lost() -> Self::Output;
}

/// An operation in progress on this thread's ring. If dropped, it continues, and its data is kept until it has ended.
enum InFlight<D: Finished> {
    Own(driver::InFlight<D>),
    Guest(guest::InFlight<D>),
}

/// Starts an operation.
///
/// # Safety
/// `data` must own the descriptor and all memory that `entry` names, at addresses that do not change when `data` moves:
/// `data` is kept until the operation has ended. Otherwise they must stay open and valid for as long as the process
/// runs.
unsafe fn submit<D: Finished>(data: D, entry: squeue::Entry) -> InFlight<D> {
    match Engine::current() {
        // SAFETY: the caller upholds the contract of `submit`.
        Engine::TokioUring => InFlight::Guest(unsafe { guest::submit(data, entry) }),
        // SAFETY: the caller upholds the contract of `submit`.
        _ => InFlight::Own(unsafe { driver::submit(data, entry) }),
    }
}

impl<D: Finished> InFlight<D> {
    /// Asks the kernel to end it soon. It may still complete normally; either way its end is awaited.
    fn cancel(&self) {
        match self {
            Self::Own(operation) => operation.cancel(),
            Self::Guest(operation) => operation.cancel(),
        }
    }

    /// Whether a cancellation that the kernel has lost is repeated without being asked for.
    fn repeats_cancellation(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// Whether the kernel has it, as far as is known.
    fn is_submitted(&self) -> bool {
        match self {
            Self::Own(operation) => operation.is_submitted(),
            Self::Guest(_) => false,
        }
    }

    /// Makes what has happened by now visible to the next poll. Returns false if it may not be.
    fn catch_up(&self) -> bool {
        match self {
            Self::Own(operation) => operation.catch_up(),
            Self::Guest(_) => false,
        }
    }
}

impl<D: Finished> Future for InFlight<D> {
    type Output = D::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Own(operation) => Pin::new(operation).poll(cx),
            Self::Guest(operation) => Pin::new(operation).poll(cx),
        }
    }
}

/// Byte offset of `ioprio` in a submission queue entry, and the entry's size: kernel ABI (io_uring.h).
const IOPRIO_OFFSET: usize = 2;
const ENTRY_BYTES: usize = 64;
/// IORING_RECVSEND_POLL_FIRST (5.19).
const POLL_FIRST: u16 = 1;
const _: () = assert!(size_of::<squeue::Entry>() == ENTRY_BYTES);

/// Makes a receive wait for readiness before it tries: if data is not expected soon, the first try would fail. io-uring
/// 0.6 has no setter for the flag on a plain receive.
fn poll_first(mut entry: squeue::Entry) -> squeue::Entry {
    // SAFETY: this function owns the entry, a plain `repr(C)` submission queue entry of the kernel's 64 bytes; `ioprio`
    // is the aligned u16 at this offset, for which any value is valid.
    unsafe { (&raw mut entry).cast::<u8>().add(IOPRIO_OFFSET).cast::<u16>().write(POLL_FIRST) };
    entry
}
