//! What an application learns about bytes before it reads them: how many there are, which, and when they arrive.

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::flow::{Flow, Got};
use super::pairs::Way;
use super::trial::{Checked, Found, Trial, refused};
use super::wait::{Deadline, until};

/// FIONREAD returns the number of unread bytes: of one message, of a part of it, and of two. nginx uses it.
pub(super) fn fionread(trial: &mut Trial<'_>) -> Checked {
    for way in Way::BOTH {
        let pair = trial.pair()?;
        let before = trial.mark()?;
        let mut flow = trial.flow(&pair, way);
        let size = trial.part();
        tells(&flow, trial.deadline)?;
        flow.send(size)?;
        tells(&flow, trial.deadline)?;
        if let Some(part) = size.checked_div(3).filter(|part| *part > 0) {
            flow.drain_to(size - part)?;
            tells(&flow, trial.deadline)?;
        }
        let messages = trial.burst();
        for _ in 1..messages {
            flow.send(size)?;
        }
        tells(&flow, trial.deadline)?;
        flow.drain_all()?;
        tells(&flow, trial.deadline)?;
        trial.joined(before, messages)?;
    }
    Ok(())
}

/// Bytes through TCP may arrive a moment later; too many are never correct.
pub(super) fn tells(flow: &Flow, deadline: Deadline) -> Checked {
    let mut told = 0;
    let right = until(deadline.soon(), || {
        told = unread(&flow.to)?;
        Ok(told >= flow.unread())
    })?;
    if right && told == flow.unread() {
        return Ok(());
    }
    Err(Found::new(format!("FIONREAD returns {told} where {} bytes are unread", flow.unread())))
}

/// The result of FIONREAD.
fn unread(socket: &TcpStream) -> Result<usize, Found> {
    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open while `socket` is borrowed. The call writes one int on this stack, which outlives
    // the call, and keeps no pointer.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    if done != 0 {
        return Err(refused("ioctl(FIONREAD)")(std::io::Error::last_os_error()));
    }
    usize::try_from(count).map_err(|_| Found::new(format!("FIONREAD returns {count}")))
}

/// MSG_PEEK shows the bytes and does not consume them.
pub(super) fn peek(trial: &mut Trial<'_>) -> Checked {
    for way in Way::BOTH {
        let pair = trial.pair()?;
        let before = trial.mark()?;
        let mut flow = trial.flow(&pair, way);
        let size = trial.message();
        for _ in 0..2 {
            flow.send(size)?;
            flow.wait_readable()?;
            // A part of it, the whole, and once more.
            for length in [size.div_ceil(2), size, size] {
                if flow.peek(length)? != Got::Bytes(length) {
                    return Err(Found::new(format!("MSG_PEEK did not show {length} bytes {way}")));
                }
            }
            flow.drain_all()?;
            if flow.peek(size)? != Got::Nothing {
                return Err(Found::new(format!("MSG_PEEK showed consumed bytes {way}")));
            }
        }
        trial.joined(before, 2)?;
    }
    Ok(())
}

/// An edge-triggered reader gets an event for each burst, for one more message after it, and for the end; and no
/// endless events.
pub(super) fn edge(trial: &mut Trial<'_>) -> Checked {
    for way in Way::BOTH {
        let pair = trial.pair()?;
        let before = trial.mark()?;
        let mut flow = trial.flow(&pair, way);
        let mut edges = Edges::of(&flow.to)?;
        for messages in [trial.burst(), 1] {
            for _ in 0..messages {
                flow.send(trial.part())?;
            }
            let heard = edges.follow(&mut flow, trial.deadline)?;
            if heard > messages {
                return Err(Found::new(format!("{heard} events for {messages} messages {way}")));
            }
        }
        trial.joined(before, trial.burst() + 1)?;
        flow.shut_down()?;
        edges.next(trial.deadline, "an edge at the end")?;
        while flow.receive(usize::MAX)? != Got::End {
            edges.next(trial.deadline, "an edge at the end")?;
        }
    }
    Ok(())
}

/// A socket in its own epoll set, edge-triggered.
pub(super) struct Edges(Epoll);

impl Edges {
    pub(super) fn of(socket: &TcpStream) -> Result<Self, Found> {
        let failed = |error: Errno| refused("epoll")(error.into());
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        epoll.add(socket.as_fd(), EpollEvent::new(flags, 0)).map_err(failed)?;
        Ok(Self(epoll))
    }

    /// Reads everything sent, only after an event and then until nothing is left. Returns the number of events.
    fn follow(&mut self, flow: &mut Flow, deadline: Deadline) -> Result<u64, Found> {
        let mut heard = 0;
        while flow.unread() > 0 {
            self.next(deadline, "an edge at bytes unread")?;
            heard += 1;
            loop {
                match flow.receive(usize::MAX)? {
                    Got::Bytes(_) => {}
                    Got::Nothing => break,
                    Got::End | Got::Reset => return Err(Found::new("the stream ended too early")),
                }
            }
        }
        Ok(heard)
    }

    /// Waits for an event.
    pub(super) fn next(&mut self, deadline: Deadline, what: &str) -> Checked {
        let mut events = [EpollEvent::empty()];
        loop {
            match self.0.wait(&mut events, EpollTimeout::from(deadline.left(what)?)) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(refused("epoll")(error.into())),
            }
        }
    }
}
