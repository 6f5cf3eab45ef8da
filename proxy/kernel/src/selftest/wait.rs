//! Waiting for non-blocking sockets, with one deadline for everything.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::trial::{Checked, Found, refused};

/// When the self-test must have ended.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Instant);

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    fn within(self, limit: Duration) -> Self {
        Self(self.0.min(Instant::now() + limit))
    }

    /// This deadline, or an earlier one that is still long for the kernel.
    pub(super) fn soon(self) -> Self {
        self.within(Duration::from_millis(300))
    }

    fn is_over(self) -> bool {
        Instant::now() >= self.0
    }

    /// Milliseconds left, rounded up so that waiting does not spin at the end. An error that names `what` if none are
    /// left.
    pub(super) fn left(self, what: &str) -> Result<u16, Found> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Found::new(format!("timed out waiting for {what}")));
        }
        Ok(u16::try_from(left.as_millis()).map_or(u16::MAX, |left| left.saturating_add(1)))
    }
}

/// Waits until one of the sockets is ready for its requested events, or has ended.
pub(super) fn ready<S: AsFd>(sockets: &[(&S, PollFlags)], deadline: Deadline, what: &str) -> Checked {
    let mut asked: Vec<PollFd<'_>> =
        sockets.iter().map(|(socket, flags)| PollFd::new(socket.as_fd(), *flags)).collect();
    loop {
        match poll(&mut asked, PollTimeout::from(deadline.left(what)?)) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(refused("poll")(error.into())),
        }
    }
}

/// Waits until there is something to read, even if it is only the end.
pub(super) fn readable(socket: &TcpStream, deadline: Deadline, what: &str) -> Checked {
    ready(&[(socket, PollFlags::POLLIN)], deadline, what)
}

/// Polls a condition for which there is no event. Returns whether it became true.
pub(super) fn until(
    deadline: Deadline,
    mut done: impl FnMut() -> Result<bool, Found>,
) -> Result<bool, Found> {
    const AGAIN_MS: u16 = 1;
    loop {
        // Read the clock before calling `done`, so that it does not matter how much time passes in between.
        let last = deadline.is_over();
        if done()? {
            return Ok(true);
        }
        if last {
            return Ok(false);
        }
        match poll(&mut [], PollTimeout::from(AGAIN_MS)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(refused("poll")(error.into())),
        }
    }
}
