//! Receive, connect and wait for events.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use socket2::{SockAddr, SockRef};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::call::{Call, attempt, cancelled};
use crate::Fd;

/// First and longest pause of a connect to a unix socket whose queue is full: the kernel does not report when it has
/// room.
const QUEUE_PAUSE: Duration = Duration::from_millis(1);
const QUEUE_PAUSE_MAX: Duration = Duration::from_millis(20);

/// The longest that epoll takes to report what has arrived, unless the process is stopped or starved.
const REPORT_MAX: Duration = Duration::from_millis(50);

/// A receive in progress. The kernel holds no part of it.
pub(crate) struct RecvOp {
    fd: Fd,
    buf: Vec<u8>,
    /// How much to allocate once something has arrived, if `buf` has no room.
    lent_bytes: usize,
    eagerness: Eagerness,
    call: Call,
}

/// When a receive tries although epoll has reported nothing.
struct Eagerness {
    /// At its next poll.
    must_try: bool,
    /// After it has waited long since then.
    waits_since: Option<Instant>,
}

impl RecvOp {
    pub(crate) fn new(fd: &Fd, buf: Vec<u8>, patient: bool) -> Self {
        Self {
            fd: Fd::clone(fd),
            buf,
            lent_bytes: 0,
            eagerness: Eagerness { must_try: !patient, waits_since: None },
            call: Call::default(),
        }
    }

    /// Without a buffer, until up to `bytes_max` bytes can be received.
    pub(crate) fn lent(fd: &Fd, bytes_max: usize, patient: bool) -> Self {
        Self { lent_bytes: bytes_max, ..Self::new(fd, Vec::new(), patient) }
    }

    /// Makes its next poll try, even if epoll has reported nothing.
    pub(crate) fn refresh(&mut self) {
        self.eagerness.must_try = true;
    }

    pub(crate) fn cancel(&self) {
        self.call.cancel();
    }

    fn poll_count(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // A socket that is read before it has to wait is not registered.
        if self.eagerness.must_try && !self.fd.is_watched() {
            self.eagerness.must_try = false;
            if let Some(outcome) = receive(&self.fd, &mut self.buf, self.lent_bytes) {
                return Poll::Ready(outcome);
            }
        }
        let watch = self.fd.watch()?;
        loop {
            let readiness = watch.poll_read_ready(cx)?;
            if readiness.is_pending() && !self.eagerness.is_due() {
                return Poll::Pending;
            }
            self.eagerness.must_try = false;
            // Readiness is not cleared when a receive leaves room in the buffer: a joined socket has two queues, and
            // one receive reads from only one of them. Any socket may be joined, also by another sluice that is its
            // client.
            match (receive(&self.fd, &mut self.buf, self.lent_bytes), readiness) {
                (Some(outcome), _) => return Poll::Ready(outcome),
                (None, Poll::Ready(mut readiness)) => readiness.clear_ready(),
                (None, Poll::Pending) => return Poll::Pending,
            }
        }
    }
}

impl Eagerness {
    /// Whether to try now. If the process was stopped during a long wait, timers are due before epoll reports what has
    /// arrived in time.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_late = self.waits_since.is_some_and(|since| now.duration_since(since) > REPORT_MAX);
        let tries = std::mem::take(&mut self.must_try) || is_late;
        if tries || self.waits_since.is_none() {
            self.waits_since = Some(now);
        }
        tries
    }
}

impl Future for RecvOp {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match self.call.is_cancelled() {
            true => Err(cancelled()),
            false => match self.poll_count(cx) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => {
                    self.call.wait(cx);
                    return Poll::Pending;
                }
            },
        };
        Poll::Ready((outcome, std::mem::take(&mut self.buf)))
    }
}

/// Receives without waiting, into a new buffer if one is to be lent.
fn receive(fd: &Fd, buf: &mut Vec<u8>, lent_bytes: usize) -> Option<io::Result<usize>> {
    if lent_bytes == 0 {
        return attempt(|| receive_into(fd, buf));
    }
    buf.reserve_exact(lent_bytes);
    let outcome = attempt(|| receive_into(fd, buf));
    if !matches!(outcome, Some(Ok(1..))) {
        *buf = Vec::new();
    }
    outcome
}

/// Receives into the spare capacity, without waiting.
#[allow(unsafe_code, reason = "the kernel fills the spare capacity of a buffer")]
fn receive_into(fd: &Fd, buf: &mut Vec<u8>) -> io::Result<usize> {
    let count = SockRef::from(fd).recv_with_flags(buf.spare_capacity_mut(), libc::MSG_DONTWAIT)?;
    let filled = buf.len() + count;
    assert!(filled <= buf.capacity(), "the kernel received only the spare capacity");
    // SAFETY: the buffer is borrowed mutably; the kernel wrote `count` bytes right after the old length, within the
    // spare capacity.
    unsafe { buf.set_len(filled) };
    Ok(count)
}

/// Connects. The socket is non-blocking from then on.
pub(crate) async fn connect(fd: &Fd, address: &SockAddr) -> io::Result<()> {
    let socket = SockRef::from(fd);
    socket.set_nonblocking(true)?;
    let mut pause = QUEUE_PAUSE;
    loop {
        match socket.connect(address) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(QUEUE_PAUSE_MAX);
            }
            outcome => return outcome,
        }
    }
    poll(fd, libc::POLLOUT).await?;
    socket.take_error()?.map_or(Ok(()), Err)
}

/// Waits for events on a duplicate of the descriptor, so that it takes no event from a receive or a send on the socket.
#[allow(unsafe_code, reason = "the registration owns the registered descriptor")]
pub(crate) async fn poll(fd: &Fd, events: libc::c_short) -> io::Result<()> {
    let (own, events) = (fd.as_fd().try_clone_to_owned()?, PollFlags::from_bits_retain(events));
    let mut interest = Interest::READABLE;
    if events.contains(PollFlags::POLLOUT) {
        interest |= Interest::WRITABLE;
    }
    // SAFETY: the registration owns the duplicate, which therefore stays open for as long as it is registered.
    let watch = unsafe { AsyncFd::register_with_interest(own, interest) }?;
    loop {
        let mut fds = [PollFd::new(fd.as_fd(), events)];
        match nix::poll::poll(&mut fds, PollTimeout::ZERO) {
            Ok(0) => {}
            Err(Errno::EINTR) => continue,
            outcome => return outcome.map(drop).map_err(Into::into),
        }
        watch.ready(interest).await?.clear_ready();
    }
}

/// Calls `attempt` until it returns something. Readiness is kept when it has: there may be more.
pub(crate) async fn when_readable<T>(fd: &Fd, mut attempt: impl FnMut() -> Option<T>) -> io::Result<T> {
    loop {
        if let Some(outcome) = attempt() {
            return Ok(outcome);
        }
        let mut readiness = fd.watch()?.readable().await?;
        if let Some(outcome) = attempt() {
            return Ok(outcome);
        }
        readiness.clear_ready();
    }
}
