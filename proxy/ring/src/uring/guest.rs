//! tokio-uring as the driver: its runtime, and our operations through its `UnsubmittedOneshot`.
//!
//! This module adds two missing features. tokio-uring cannot cancel, and does not reveal the numbers of its operations,
//! so they are cancelled by descriptor and kind (Linux 6.6). And it drops the result of an operation whose future is
//! dropped, so a task waits for an operation that may return a descriptor, and closes that descriptor.
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

use super::{Completion, ENTRIES, Finished};

/// Byte offsets in a submission queue entry: kernel ABI (io_uring.h).
const OPCODE_OFFSET: usize = 0;
const FD_OFFSET: usize = 4;
const LEN_OFFSET: usize = 24;
const CANCEL_FLAGS_OFFSET: usize = 28;
/// IORING_ASYNC_CANCEL_OP (6.6): match the kind of operation in `len`.
const CANCEL_OP: u32 = 1 << 5;

/// Runs `future` on tokio-uring, on this thread, and leaks the runtime.
pub(crate) fn run<F: Future>(future: F) -> io::Result<F::Output> {
    let mut ring = tokio_uring::uring_builder();
    // COOP_TASKRUN (5.19) saves the inter-processor interrupt at each completion; SINGLE_ISSUER (6.0) the locking.
    // DEFER_TASKRUN would stall: tokio-uring waits in epoll, not in io_uring_enter.
    ring.setup_cqsize(ENTRIES * 4).setup_coop_taskrun().setup_single_issuer();
    let mut builder = tokio_uring::builder();
    let runtime = ManuallyDrop::new(Runtime::new(builder.entries(ENTRIES).uring_builder(&ring))?);
    Ok(runtime.block_on(future))
}

/// An operation in progress.
pub(super) struct InFlight<D: Finished> {
    /// `None` once it has ended.
    operation: Option<InFlightOneshot<D, Finish<D>>>,
    target: Target,
}

/// Starts an operation.
///
/// # Safety
/// The contract of [`super::submit`].
pub(super) unsafe fn submit<D: Finished>(data: D, entry: squeue::Entry) -> InFlight<D> {
    let target = Target::of(&entry);
    // `data` is kept by tokio-uring until the completion has arrived, even if the future is dropped: see its
    // `Lifecycle`.
    let operation = UnsubmittedOneshot::new(data, Finish(PhantomData), entry).submit();
    InFlight { operation: Some(operation), target }
}

impl<D: Finished> InFlight<D> {
    /// Asks the kernel to end it soon.
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

/// Turns an operation's data into its result at the completion.
struct Finish<D>(PhantomData<fn(D)>);

impl<D: Finished> OneshotOutputTransform for Finish<D> {
    type Output = D::Output;
    type StoredData = D;

    fn transform_oneshot_output(self, data: D, cqe: cqueue::Entry) -> D::Output {
        data.finish(Completion { result: cqe.result(), flags: cqe.flags() })
    }
}

struct Ignore;

impl OneshotOutputTransform for Ignore {
    type Output = ();
    type StoredData = ();

    fn transform_oneshot_output(self, (): (), _: cqueue::Entry) {}
}

/// Selects the operations to cancel: all of one kind on one descriptor. Either there is only one, or all of them must
/// end: the accepts of a burst, or an operation abandoned earlier. Without `all`, the kernel would match an operation
/// that is already cancelled again, and miss the other one.
#[derive(Clone, Copy)]
struct Target {
    fd: RawFd,
    opcode: u8,
}

impl Target {
    fn of(entry: &squeue::Entry) -> Self {
        let bytes = std::ptr::from_ref(entry).cast::<u8>();
        // SAFETY: the entry is a plain `repr(C)` submission queue entry of the kernel's 64 bytes, borrowed for the
        // reads; at these offsets it has an aligned u8 and an aligned i32.
        let (opcode, fd) =
            unsafe { (bytes.add(OPCODE_OFFSET).read(), bytes.add(FD_OFFSET).cast::<RawFd>().read()) };
        Self { fd, opcode }
    }

    /// The entry that cancels them.
    fn cancellation(self) -> squeue::Entry {
        let mut entry = opcode::AsyncCancel2::new(types::CancelBuilder::fd(types::Fd(self.fd)).all()).build();
        let bytes = (&raw mut entry).cast::<u8>();
        // SAFETY: as above, and this function owns the entry: `len` and `cancel_flags` are aligned u32, for which any
        // value is valid.
        unsafe {
            bytes.add(LEN_OFFSET).cast::<u32>().write(self.opcode.into());
            let flags = bytes.add(CANCEL_FLAGS_OFFSET).cast::<u32>();
            flags.write(flags.read() | CANCEL_OP);
        }
        entry
    }
}

/// The kernel's result for a cancellation that matches nothing: the number of matches, which is 0, or an error.
pub(super) fn try_cancellation(ring: &mut IoUring) -> io::Result<i32> {
    // Standard error, or whatever has its number: this ring has no operation on it.
    let entry = Target { fd: 2, opcode: opcode::Recv::CODE }.cancellation();
    // SAFETY: the entry names no memory, and its descriptor is only compared.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    ring.completion().next().map(|entry| entry.result()).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
