//! How a spliced tunnel is looked at: at its sockets, and again and again while its books do not agree yet.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sluice_ring as ring;
use tokio::time::{Instant, sleep};

use super::Fault;

/// How long the books may disagree while nothing hinders them.
const AGREE: Duration = Duration::from_secs(5);
/// How often they are looked at, at first and at last.
const LOOK_FIRST: Duration = Duration::from_micros(500);
const LOOK_LAST: Duration = Duration::from_millis(20);

/// Looks again and again, ever more seldom, and not for ever.
pub(super) struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { until: Instant::now() + AGREE, pause: LOOK_FIRST }
    }

    /// Begins anew to count, without looking more often again.
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

/// Whether the connection was reset or has failed otherwise; leaves the error where it is.
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
