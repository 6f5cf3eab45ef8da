//! Bytes that the kernel put into a socket's send queue for another socket's send, without the socket's writer.
//!
//! The kernel announces them before they are in the queue. So before it sends again, the writer checks that they have
//! arrived.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sluice_kernel::tcp;
use tokio::time::{Sleep, sleep};

/// How often the queue is checked without a pause. Once is nearly always enough.
const LOOKS: u32 = 8;
/// How long to wait before each later check, and the maximum number of checks. Bytes that are still missing then will
/// never arrive.
const PAUSE: Duration = Duration::from_millis(1);
const LOOKS_MAX: u32 = 3000;

/// The number of such bytes.
pub(super) struct PassedBytes {
    /// What the kernel counts as written before the first byte of the writer.
    base: u64,
    bytes: u64,
    /// Whether some have not been seen in the queue yet.
    pending: bool,
    looks: u32,
    timer: Option<Pin<Box<Sleep>>>,
}

impl PassedBytes {
    /// Starts counting on a socket whose writer has sent `written` bytes and has no send in progress.
    pub(super) fn begin(socket: BorrowedFd<'_>, written: u64) -> Option<Self> {
        let base = tcp::written(socket).ok()??.checked_sub(written)?;
        Some(Self { base, bytes: 0, pending: false, looks: 0, timer: None })
    }

    /// Adds announced bytes.
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.pending = true;
        self.looks = 0;
    }

    /// Number of such bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ready once all are in the send queue, after the writer's `written` bytes.
    pub(super) fn poll_arrived(
        &mut self,
        cx: &mut Context<'_>,
        socket: BorrowedFd<'_>,
        written: u64,
    ) -> Poll<io::Result<()>> {
        while self.pending {
            if let Some(timer) = &mut self.timer {
                std::task::ready!(timer.as_mut().poll(cx));
                self.timer = None;
            }
            let queued = tcp::written_at_least(socket).map_err(|error| error.error)?;
            let wanted = self.base + written + self.bytes;
            if queued == wanted {
                self.pending = false;
                break;
            }
            self.looks += 1;
            if queued > wanted || self.looks > LOOKS_MAX || tcp::is_closed(socket) {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if self.looks < LOOKS {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.timer = Some(Box::pin(sleep(PAUSE)));
        }
        Poll::Ready(Ok(()))
    }
}
