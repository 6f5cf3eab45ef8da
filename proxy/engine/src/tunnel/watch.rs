//! Checks the sockets of a spliced tunnel, repeatedly while its byte counts do not match yet.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sluice_ring as ring;
use tokio::time::{Instant, sleep};

use super::Fault;

/// How long the counts may differ while nothing blocks the bytes.
const AGREE: Duration = Duration::from_secs(5);
/// The first and the longest interval between checks.
const LOOK_FIRST: Duration = Duration::from_micros(500);
const LOOK_LAST: Duration = Duration::from_millis(20);

/// Repeats a check at increasing intervals, for a limited time.
pub(super) struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { until: Instant::now() + AGREE, pause: LOOK_FIRST }
    }

    /// Starts the time limit again, without shortening the interval.
    pub(super) fn renew(&mut self) {
        self.until = Instant::now() + AGREE;
    }

    pub(super) async fn wait(&mut self) -> Result<(), Fault> {
        if Instant::now() >= self.until {
            return Err(Fault::Ledger);
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LOOK_LAST);
        Ok(())
    }
}

/// Whether the connection was reset or has failed otherwise; does not consume the error.
pub(super) fn is_broken(socket: &ring::Fd) -> bool {
    look(socket, PollFlags::empty(), PollFlags::POLLERR)
}

/// Whether there is room in the send buffer.
pub(super) fn is_writable(socket: &ring::Fd) -> bool {
    look(socket, PollFlags::POLLOUT, PollFlags::POLLOUT)
}

fn look(socket: &ring::Fd, ask: PollFlags, wanted: PollFlags) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), ask)];
    let asked = poll(&mut fds, PollTimeout::ZERO);
    asked.is_ok() && fds[0].revents().is_some_and(|events| events.intersects(wanted))
}
