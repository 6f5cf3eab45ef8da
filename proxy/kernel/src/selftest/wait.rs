//! Waiting for sockets that do not block, until one moment for everything.

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

    /// This one, or a moment from now that is long for the kernel.
    pub(super) fn soon(self) -> Self {
        self.within(Duration::from_millis(300))
    }

    fn is_over(self) -> bool {
        Instant::now() >= self.0
    }

    /// Milliseconds left, rounded up so that waiting does not spin at the end; what is missing if there are none.
    pub(super) fn left(self, what: &str) -> Result<u16, Found> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Found::new(format!("waited in vain for {what}, until no time was left")));
        }
        Ok(u16::try_from(left.as_millis()).map_or(u16::MAX, |left| left.saturating_add(1)))
    }
}

/// Waits until one of the sockets is ready for what is asked of it, or has ended.
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

/// Waits until there is something to read, if only the end.
pub(super) fn readable(socket: &TcpStream, deadline: Deadline, what: &str) -> Checked {
    ready(&[(socket, PollFlags::POLLIN)], deadline, what)
}

/// Asks again and again, where no event tells of a change; whether it came to be.
pub(super) fn until(
    deadline: Deadline,
    mut done: impl FnMut() -> Result<bool, Found>,
) -> Result<bool, Found> {
    const AGAIN_MS: u16 = 1;
    loop {
        // Looked at before the question, so that this thread may lose any time in between.
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
