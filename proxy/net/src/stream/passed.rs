//! Bytes that left on a socket past its writer: put into its send queue by the kernel, for somebody else's send.
//!
//! They are promised before they are there. So before the writer sends again it sees that they are.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sluice_kernel::tcp;
use tokio::time::{Sleep, sleep};

/// How often the queue is looked at without a pause: nearly always once is enough.
const LOOKS: u32 = 8;
/// How long a look waits after that, and how often there is another one. If they are not there then, they never
/// will be.
const PAUSE: Duration = Duration::from_millis(1);
const LOOKS_MAX: u32 = 3000;

/// The count of them.
pub(super) struct PassedBytes {
    /// What the kernel counts as written when nothing was.
    base: u64,
    bytes: u64,
    /// Whether some have not been seen in the queue.
    pending: bool,
    looks: u32,
    timer: Option<Pin<Box<Sleep>>>,
}

impl PassedBytes {
    /// Begins to count on a socket whose writer has sent `written` bytes, with nothing under way.
    pub(super) fn begin(socket: BorrowedFd<'_>, written: u64) -> Option<Self> {
        let base = tcp::written(socket).ok()??.checked_sub(written)?;
        Some(Self { base, bytes: 0, pending: false, looks: 0, timer: None })
    }

    /// Notes bytes that are promised.
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.pending = true;
        self.looks = 0;
    }

    /// How many there were.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ready once all are in the send queue, behind the `written` ones of the writer.
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
