//! Send: at once as far as the socket takes it, the rest when it has room.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::time::{Sleep, sleep};

use super::call::{Call, attempt, cancelled};
use crate::Fd;

/// Between two attempts while epoll cannot report room, for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(5);

type Outcome = (io::Result<usize>, Vec<u8>);

/// A send in progress.
pub(crate) enum SendOp {
    /// The first attempt has completed it.
    Done(Option<Outcome>),
    /// The socket had no room; it is tried again when polled.
    Waiting(Pending),
    /// A task sends the rest, because the send must be whole.
    Task(Rc<Shared>),
}

/// The bytes to send.
pub(crate) struct Pending {
    fd: Fd,
    buf: Vec<u8>,
    start: usize,
    /// Bytes that the socket took.
    sent: usize,
    whole: bool,
    call: Call,
    /// The time of the next attempt, while no descriptor is left for the registration.
    pause: Option<Pin<Box<Sleep>>>,
}

/// State shared by a task and its operation.
#[derive(Default)]
pub(crate) struct Shared {
    call: Call,
    end: RefCell<End>,
}

#[derive(Default)]
enum End {
    #[default]
    UnderWay,
    Awaited(Waker),
    Come(Option<Outcome>),
}

impl SendOp {
    pub(crate) fn new(fd: &Fd, buf: Vec<u8>, start: usize, whole: bool) -> Self {
        let mut pending =
            Pending { fd: Fd::clone(fd), buf, start, sent: 0, whole, call: Call::default(), pause: None };
        match pending.advance() {
            Some(outcome) => Self::Done(Some((outcome, pending.buf))),
            None if whole => Self::Task(pending.spawn()),
            None => Self::Waiting(pending),
        }
    }

    pub(crate) fn cancel(&self) {
        match self {
            Self::Done(_) => {}
            Self::Waiting(pending) => pending.call.cancel(),
            Self::Task(shared) => shared.call.cancel(),
        }
    }
}

impl Future for SendOp {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            #[expect(clippy::expect_used, reason = "a bug in sluice that the first test would show")]
            Self::Done(outcome) => Poll::Ready(outcome.take().expect("polled after completion")),
            Self::Waiting(pending) => {
                let outcome = ready!(pending.poll(cx));
                Poll::Ready((outcome, std::mem::take(&mut pending.buf)))
            }
            Self::Task(shared) => shared.poll(cx),
        }
    }
}

impl Pending {
    /// Sends as much as the socket takes, and returns the result if that was enough. Bytes taken before an error count;
    /// the next send reports the error.
    fn advance(&mut self) -> Option<io::Result<usize>> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        loop {
            let rest = &self.buf[self.start + self.sent..];
            let taken = attempt(|| SockRef::from(&self.fd).send_with_flags(rest, flags));
            match taken {
                Some(Ok(count)) => self.sent += count,
                Some(Err(error)) if self.sent == 0 => return Some(Err(error)),
                Some(Err(_)) => return Some(Ok(self.sent)),
                None if self.sent > 0 && !self.whole => return Some(Ok(self.sent)),
                None => return None,
            }
            if self.start + self.sent >= self.buf.len() {
                return Some(Ok(self.sent));
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            if self.call.is_cancelled() {
                return Poll::Ready(if self.sent > 0 { Ok(self.sent) } else { Err(cancelled()) });
            }
            let fd = Fd::clone(&self.fd);
            let Ok(room) = fd.room() else {
                if self.pause.get_or_insert_with(|| Box::pin(sleep(PAUSE))).as_mut().poll(cx).is_pending() {
                    break;
                }
                self.pause = None;
                match self.advance() {
                    Some(outcome) => return Poll::Ready(outcome),
                    None => continue,
                }
            };
            match room.poll_write_ready(cx) {
                Poll::Pending => break,
                Poll::Ready(readiness) => match self.advance() {
                    Some(outcome) => return Poll::Ready(outcome),
                    None => readiness?.clear_ready(),
                },
            }
        }
        self.call.wait(cx);
        Poll::Pending
    }

    /// Continues in a task, which keeps descriptor and buffer until the end, as the kernel does when it sends by
    /// itself.
    fn spawn(mut self) -> Rc<Shared> {
        let shared = Rc::<Shared>::default();
        let end = Rc::clone(&shared);
        tokio::task::spawn_local(async move {
            let outcome = poll_fn(|cx| {
                if end.call.is_cancelled() {
                    self.call.cancel();
                }
                end.call.wait(cx);
                self.poll(cx)
            })
            .await;
            end.come((outcome, self.buf));
        });
        shared
    }
}

impl Shared {
    fn come(&self, outcome: Outcome) {
        if let End::Awaited(waker) = self.end.replace(End::Come(Some(outcome))) {
            waker.wake();
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Outcome> {
        let mut end = self.end.borrow_mut();
        if let End::Come(outcome) = &mut *end
            && let Some(outcome) = outcome.take()
        {
            return Poll::Ready(outcome);
        }
        *end = End::Awaited(cx.waker().clone());
        Poll::Pending
    }
}
