//! The ring operations that tokio-uring lacks, as futures that own what the kernel touches.
//!
//! Every operation here keeps its descriptor (a counted [`Rc<OwnedFd>`]) and its buffer in the
//! operation's stable data. tokio-uring holds that data until the completion has come, also when the
//! future is dropped first, so no buffer is freed and no descriptor number reused under the kernel.
//!
//! The one way to break this is to drop a runtime with operations in flight: tokio-uring 0.5 then frees
//! the data of abandoned operations before they have ended. [`run`] therefore leaks its runtime, which
//! ends with the process.
#![allow(unsafe_code, reason = "completions carry raw descriptors and lengths of kernel-filled buffers")]

mod accept;
mod file;
mod probe;
mod socket;

use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::{cqueue, squeue, types};
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, UnsubmittedOneshot};

pub(crate) use accept::{accept, accept_waiting};
pub(crate) use file::{close, open, read_at, unlink, write_at};
pub(crate) use probe::{RingError, operations, probe};
pub(crate) use socket::{Recv, Send, cancel, connect, poll, recv, send};

/// Entries of a worker's submission queue; the completion queue has four times as many.
const ENTRIES: u32 = 1024;

/// Runs `future` on a ring of its own, on this thread, and leaks the ring.
///
/// # Errors
/// The ring could not be made.
pub(crate) fn run<F: Future>(future: F) -> io::Result<F::Output> {
    let mut uring = tokio_uring::uring_builder();
    // COOP_TASKRUN (5.19) spares the inter-processor interrupt at each completion; SINGLE_ISSUER (6.0)
    // the locking. DEFER_TASKRUN would stall: tokio-uring waits in epoll, not in io_uring_enter.
    uring.setup_cqsize(ENTRIES * 4).setup_coop_taskrun().setup_single_issuer();
    let mut builder = tokio_uring::builder();
    builder.entries(ENTRIES).uring_builder(&uring);
    let runtime = match tokio_uring::Runtime::new(&builder) {
        Ok(runtime) => runtime,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let mut plain = tokio_uring::builder();
            plain.entries(ENTRIES);
            tokio_uring::Runtime::new(&plain)?
        }
        Err(error) => return Err(error),
    };
    let runtime = std::mem::ManuallyDrop::new(runtime);
    Ok(runtime.block_on(future))
}

/// A counted descriptor: whoever holds one keeps the number from being reused.
pub(crate) type Fd = Rc<OwnedFd>;

fn raw(fd: &Fd) -> types::Fd {
    types::Fd(fd.as_raw_fd())
}

fn result(cqe: &cqueue::Entry) -> io::Result<usize> {
    usize::try_from(cqe.result()).map_err(|_| io::Error::from_raw_os_error(-cqe.result()))
}

type InFlight<D> = InFlightOneshot<D, Finish<D>>;

/// What becomes of an operation's data once its completion is there: one plain function.
struct Finish<D: Finished>(std::marker::PhantomData<D>);

impl<D: Finished> Unpin for Finish<D> {}

/// Data of an operation that knows its outcome.
trait Finished: Unpin + Sized + 'static {
    /// What the caller gets.
    type Output;
    /// Turns data and completion into the outcome.
    fn finish(self, cqe: cqueue::Entry) -> Self::Output;
}

impl<D: Finished> OneshotOutputTransform for Finish<D> {
    type Output = D::Output;
    type StoredData = D;

    fn transform_oneshot_output(self, data: D, cqe: cqueue::Entry) -> D::Output {
        data.finish(cqe)
    }
}

/// Byte offset of `ioprio` in a submission queue entry, and the entry's size: kernel ABI (io_uring.h).
const IOPRIO_OFFSET: usize = 2;
const ENTRY_BYTES: usize = 64;
/// IORING_RECVSEND_POLL_FIRST (5.19).
const POLL_FIRST: u16 = 1;
const _: () = assert!(size_of::<squeue::Entry>() == ENTRY_BYTES);

/// Makes a receive wait for readiness before it tries: for data that is not expected yet, the try would be
/// in vain. io-uring 0.6 has no setter for the flag on a plain receive.
fn poll_first(mut entry: squeue::Entry) -> squeue::Entry {
    // SAFETY: the entry is a plain `repr(C)` submission queue entry of the kernel's 64 bytes, owned here;
    // `ioprio` is the aligned u16 at this offset, any value of which is valid.
    unsafe { (&raw mut entry).cast::<u8>().add(IOPRIO_OFFSET).cast::<u16>().write(POLL_FIRST) };
    entry
}

fn submit<D: Finished>(data: D, entry: squeue::Entry) -> InFlight<D> {
    UnsubmittedOneshot::new(data, Finish(std::marker::PhantomData), entry).submit()
}
