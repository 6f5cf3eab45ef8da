//! Receive, send, connect and wait for events, on one socket.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::ptr;
use std::task::{Context, Poll};

use io_uring::opcode;
use socket2::SockAddr;

use super::driver::Driver;
use super::lender::{self, Lender};
use super::{Completion, Fd, Finished, InFlight, lost, outcome, poll_first, raw, submit};

struct RecvData {
    /// Kept so that the descriptor outlives the operation.
    _fd: Fd,
    buf: Vec<u8>,
}

impl Finished for RecvData {
    type Output = (io::Result<usize>, Vec<u8>);

    fn finish(mut self, Completion { result, .. }: Completion) -> Self::Output {
        let outcome = outcome(result);
        if let Ok(count) = outcome {
            let filled = self.buf.len() + count;
            assert!(filled <= self.buf.capacity(), "the kernel received only the spare capacity");
            // SAFETY: the operation has ended, so we own the buffer again. The kernel wrote `count` bytes right after
            // the old length, within the spare capacity that `recv` passed to it.
            unsafe { self.buf.set_len(filled) };
        }
        (outcome, self.buf)
    }

    fn lost() -> Self::Output {
        (Err(lost()), Vec::new())
    }
}

/// A receive in progress.
pub(crate) struct RecvOp(InFlight<RecvData>);

impl RecvOp {
    pub(crate) fn cancel(&self) {
        self.0.cancel();
    }

    pub(crate) fn catch_up(&self) -> bool {
        self.0.catch_up()
    }

    pub(crate) fn is_submitted(&self) -> bool {
        self.0.is_submitted()
    }
}

pub(crate) fn recv(fd: &Fd, mut buf: Vec<u8>, patient: bool) -> RecvOp {
    let spare = buf.spare_capacity_mut();
    let length = u32::try_from(spare.len()).unwrap_or(u32::MAX);
    let entry = opcode::Recv::new(raw(fd), spare.as_mut_ptr().cast(), length).build();
    let entry = if patient { poll_first(entry) } else { entry };
    // SAFETY: `RecvData` owns the descriptor and the buffer, and the driver keeps it until the operation has ended.
    // Moving the Vec does not move its heap block, and nothing touches the Vec before the completion returns it.
    RecvOp(unsafe { submit(RecvData { _fd: Fd::clone(fd), buf }, entry) })
}

impl Future for RecvOp {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

/// A receive in progress that takes a buffer of the ring when something has arrived.
pub(crate) struct LentOp {
    fd: Fd,
    receiving: Lent,
    is_cancelled: Cell<bool>,
}

enum Lent {
    Waiting(InFlight<LentData>),
    /// With a buffer of its own: there are no others, or all were taken.
    Own(RecvOp),
}

struct LentData {
    _fd: Fd,
    lender: &'static Lender,
}

impl Finished for LentData {
    type Output = (io::Result<usize>, Vec<u8>);

    fn finish(self, completion: Completion) -> Self::Output {
        (outcome(completion.result), self.lender.take_back(completion))
    }

    fn lost() -> Self::Output {
        (Err(lost()), Vec::new())
    }
}

pub(crate) fn recv_lent(fd: &Fd, bytes_max: usize, patient: bool) -> LentOp {
    let receiving = match Driver::lender_here() {
        Some(lender) if bytes_max >= lender::BUFFER_BYTES => {
            let entry = Lender::select(
                opcode::Recv::new(raw(fd), ptr::null_mut(), lender::BUFFER_BYTES as u32).build(),
            );
            let entry = if patient { poll_first(entry) } else { entry };
            // SAFETY: the entry names no memory; the kernel chooses it among the ring's buffers, which are leaked.
            // `LentData` owns the descriptor, and the driver keeps it until the operation has ended.
            Lent::Waiting(unsafe { submit(LentData { _fd: Fd::clone(fd), lender }, entry) })
        }
        _ => Lent::Own(recv(fd, Vec::with_capacity(bytes_max), patient)),
    };
    LentOp { fd: Fd::clone(fd), receiving, is_cancelled: Cell::new(false) }
}

impl LentOp {
    pub(crate) fn cancel(&self) {
        self.is_cancelled.set(true);
        match &self.receiving {
            Lent::Waiting(op) => op.cancel(),
            Lent::Own(op) => op.cancel(),
        }
    }

    pub(crate) fn catch_up(&self) -> bool {
        match &self.receiving {
            Lent::Waiting(op) => op.catch_up(),
            Lent::Own(op) => op.catch_up(),
        }
    }

    pub(crate) fn is_submitted(&self) -> bool {
        match &self.receiving {
            Lent::Waiting(op) => op.is_submitted(),
            // It may have replaced one that has just ended, and what it completes with was not looked at yet.
            Lent::Own(_) => false,
        }
    }
}

impl Future for LentOp {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { fd, receiving, is_cancelled } = &mut *self;
        if let Lent::Waiting(op) = receiving {
            let ended = std::task::ready!(Pin::new(op).poll(cx));
            // What has arrived is still in the socket.
            let none_left = ended.0.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOBUFS));
            if !none_left {
                return Poll::Ready(ended);
            }
            if let Some(lender) = Driver::lender_here() {
                lender.add();
            }
            if is_cancelled.get() {
                return Poll::Ready(LentData::lost());
            }
            *receiving = Lent::Own(recv(fd, Vec::with_capacity(lender::BUFFER_BYTES), false));
        }
        match receiving {
            Lent::Own(op) => Pin::new(op).poll(cx),
            Lent::Waiting(_) => Poll::Pending,
        }
    }
}

struct SendData {
    _fd: Fd,
    buf: Vec<u8>,
}

impl Finished for SendData {
    type Output = (io::Result<usize>, Vec<u8>);

    fn finish(self, Completion { result, .. }: Completion) -> Self::Output {
        (outcome(result), self.buf)
    }

    fn lost() -> Self::Output {
        (Err(lost()), Vec::new())
    }
}

/// A send in progress.
pub(crate) struct SendOp(InFlight<SendData>);

impl SendOp {
    pub(crate) fn cancel(&self) {
        self.0.cancel();
    }
}

pub(crate) fn send(fd: &Fd, buf: Vec<u8>, start: usize, whole: bool) -> SendOp {
    let pending = &buf[start..];
    let length = u32::try_from(pending.len()).unwrap_or(u32::MAX);
    let flags = libc::MSG_NOSIGNAL | if whole { libc::MSG_WAITALL } else { 0 };
    let entry = opcode::Send::new(raw(fd), pending.as_ptr(), length).flags(flags).build();
    // SAFETY: `SendData` owns the descriptor and the buffer, and the driver keeps it until the operation has ended. The
    // Vec's heap block neither moves nor changes before the completion returns it.
    SendOp(unsafe { submit(SendData { _fd: Fd::clone(fd), buf }, entry) })
}

impl Future for SendOp {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

struct ConnectData {
    _fd: Fd,
    /// Boxed: the kernel reads it at its address while the operation runs.
    _address: Box<SockAddr>,
}

impl Finished for ConnectData {
    type Output = io::Result<()>;

    fn finish(self, Completion { result, .. }: Completion) -> Self::Output {
        outcome(result).map(drop)
    }

    fn lost() -> Self::Output {
        Err(lost())
    }
}

pub(crate) async fn connect(fd: &Fd, address: SockAddr) -> io::Result<()> {
    let address = Box::new(address);
    let entry = opcode::Connect::new(raw(fd), address.as_ptr().cast(), address.len()).build();
    // SAFETY: `ConnectData` owns the descriptor and the boxed address. The driver keeps it until the operation has
    // ended.
    let connecting = unsafe { submit(ConnectData { _fd: Fd::clone(fd), _address: address }, entry) };
    Cancelled(connecting).await
}

pub(crate) async fn poll(fd: &Fd, events: libc::c_short) -> io::Result<()> {
    let events = u32::from(events.cast_unsigned());
    let entry = opcode::PollAdd::new(raw(fd), events).build();
    // SAFETY: `FdData` owns the descriptor. The driver keeps it until the operation has ended.
    let polling = unsafe { submit(FdData(Fd::clone(fd)), entry) };
    Cancelled(polling).await.map(drop)
}

/// An operation that is cancelled if it is dropped before its end.
struct Cancelled<D: Finished>(InFlight<D>);

impl<D: Finished> Future for Cancelled<D> {
    type Output = D::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<D: Finished> Drop for Cancelled<D> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

struct FdData(#[expect(dead_code, reason = "kept so that the descriptor outlives the operation")] Fd);

impl Finished for FdData {
    type Output = io::Result<usize>;

    fn finish(self, Completion { result, .. }: Completion) -> Self::Output {
        outcome(result)
    }

    fn lost() -> Self::Output {
        Err(lost())
    }
}
