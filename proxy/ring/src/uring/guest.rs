//! tokio-uring as the driver: its runtime, and our operations by its `UnsubmittedOneshot`.
//!
//! Two things that it lacks are added from outside. It cannot cancel, and does not tell the numbers that it gives
//! operations: so they are cancelled by descriptor and kind (linux 6.6). And it forgets the result of an operation whose
//! future is dropped: so one that may bring a descriptor is waited for by a task, which closes that.
//!
//! Dropping its runtime would free the data of abandoned operations before they have ended, so [`run`] leaks it.

use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use tokio_uring::{InFlightOneshot, OneshotOutputTransform, Runtime, UnsubmittedOneshot};

use super::{ENTRIES, Finished};

/// Byte offsets in a submission queue entry: kernel ABI (io_uring.h).
const OPCODE_OFFSET: usize = 0;
const FD_OFFSET: usize = 4;
const LEN_OFFSET: usize = 24;
const CANCEL_FLAGS_OFFSET: usize = 28;
/// IORING_ASYNC_CANCEL_OP (6.6): of the kind in `len`.
const CANCEL_OP: u32 = 1 << 5;

/// Runs `future` on tokio-uring, on this thread, and leaks that.
pub(crate) fn run<F: Future>(future: F) -> io::Result<F::Output> {
    let mut ring = tokio_uring::uring_builder();
    // COOP_TASKRUN (5.19) spares the inter-processor interrupt at each completion; SINGLE_ISSUER (6.0) the locking.
    // DEFER_TASKRUN would stall: tokio-uring waits in epoll, not in io_uring_enter.
    ring.setup_cqsize(ENTRIES * 4).setup_coop_taskrun().setup_single_issuer();
    let mut builder = tokio_uring::builder();
    let runtime = ManuallyDrop::new(Runtime::new(builder.entries(ENTRIES).uring_builder(&ring))?);
    Ok(runtime.block_on(future))
}

/// An operation under way.
pub(super) struct InFlight<D: Finished> {
    /// Gone when it has ended.
    operation: Option<InFlightOneshot<D, Finish<D>>>,
    target: Target,
}

/// Starts an operation.
///
/// # Safety
/// As [`super::submit`].
pub(super) unsafe fn submit<D: Finished>(data: D, entry: squeue::Entry) -> InFlight<D> {
    let target = Target::of(&entry);
    // `data` is kept by tokio-uring until the completion has come, also when the future is dropped: see `Lifecycle` there.
    let operation = UnsubmittedOneshot::new(data, Finish(PhantomData), entry).submit();
    InFlight { operation: Some(operation), target }
}

impl<D: Finished> InFlight<D> {
    /// Has the kernel end it soon.
    pub(super) fn cancel(&self) {
        if self.operation.is_some() {
            drop(UnsubmittedOneshot::new((), Ignore, self.target.cancellation()).submit());
        }
    }
}

impl<D: Finished> Future for InFlight<D> {
    type Output = D::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(operation) = &mut self.operation else { return Poll::Ready(D::lost()) };
        let output = std::task::ready!(Pin::new(operation).poll(cx));
        self.operation = None;
        Poll::Ready(output)
    }
}

impl<D: Finished> Drop for InFlight<D> {
    fn drop(&mut self) {
        if D::BRINGS_DESCRIPTOR
            && let Some(operation) = self.operation.take()
        {
            tokio::task::spawn_local(async move { drop(operation.await) });
        }
    }
}

/// What becomes of an operation's data once its completion is there.
struct Finish<D>(PhantomData<fn(D)>);

impl<D: Finished> OneshotOutputTransform for Finish<D> {
    type Output = D::Output;
    type StoredData = D;

    fn transform_oneshot_output(self, data: D, cqe: cqueue::Entry) -> D::Output {
        data.finish(cqe.result())
    }
}

struct Ignore;

impl OneshotOutputTransform for Ignore {
    type Output = ();
    type StoredData = ();

    fn transform_oneshot_output(self, (): (), _: cqueue::Entry) {}
}

/// By what the kernel finds an operation: all of one kind on one descriptor. There is one, or they are to end alike: those
/// of a burst of accepts, or one that was left before. Without `all` the kernel would find one that it has cancelled
/// already again, and leave its neighbour.
#[derive(Clone, Copy)]
struct Target {
    fd: RawFd,
    opcode: u8,
}

impl Target {
    fn of(entry: &squeue::Entry) -> Self {
        let bytes = std::ptr::from_ref(entry).cast::<u8>();
        // SAFETY: the entry is a plain `repr(C)` submission queue entry of the kernel's 64 bytes; these are its aligned u8
        // and i32 at those offsets.
        let (opcode, fd) =
            unsafe { (bytes.add(OPCODE_OFFSET).read(), bytes.add(FD_OFFSET).cast::<RawFd>().read()) };
        Self { fd, opcode }
    }

    /// The entry that cancels it.
    fn cancellation(self) -> squeue::Entry {
        let mut entry = opcode::AsyncCancel2::new(types::CancelBuilder::fd(types::Fd(self.fd)).all()).build();
        let bytes = (&raw mut entry).cast::<u8>();
        // SAFETY: as above, and the entry is owned here: `len` and `cancel_flags` are aligned u32, any value of which is
        // valid.
        unsafe {
            bytes.add(LEN_OFFSET).cast::<u32>().write(self.opcode.into());
            let flags = bytes.add(CANCEL_FLAGS_OFFSET).cast::<u32>();
            flags.write(flags.read() | CANCEL_OP);
        }
        entry
    }
}

/// What the kernel says to a cancellation that finds nothing: how many it has found, which is 0, or an error.
pub(super) fn try_cancellation(ring: &mut IoUring) -> io::Result<i32> {
    // Standard error, or whatever has its number: there is no operation of this ring on it.
    let entry = Target { fd: 2, opcode: opcode::Recv::CODE }.cancellation();
    // SAFETY: the entry names no memory.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    ring.completion().next().map(|entry| entry.result()).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
