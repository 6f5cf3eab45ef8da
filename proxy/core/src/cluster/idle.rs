//! Idle upstream sockets that workers share: those of endpoints with a limit on requests in flight.
//!
//! If each worker had its own pool, each would keep connections, and a thread-per-connection server (Puma waits some
//! time for the next request on each) would wait on connections that nobody uses. With a shared pool, there are never
//! more connections than requests that were in flight at once. No operation is pending on these sockets, so any
//! worker's ring may take one.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Idle sockets of one endpoint. `take` starts at the end: the most recently parked socket is there, and sockets that
/// carried a body are at the front.
#[derive(Default)]
pub struct IdleSockets(CachePadded<Mutex<Vec<IdleSocket>>>);

/// Sockets that were closed with their endpoint, outside any worker; one worker counts them.
static CLOSED: AtomicU64 = AtomicU64::new(0);

/// How many sockets were closed with their endpoints since the last call.
pub fn closed_with_endpoints() -> u64 {
    // Read first: every worker calls this at every tick, and the count is nearly always 0.
    if CLOSED.load(Relaxed) == 0 { 0 } else { CLOSED.swap(0, Relaxed) }
}

/// A socket that is not in use.
pub struct IdleSocket {
    /// Connected, with nothing unread when it was parked.
    pub socket: OwnedFd,
    /// Whether it is joined past loopback TCP.
    pub joined: bool,
    /// What must live as long as the connection.
    pub attached: Option<Attached>,
    /// When it was last used.
    pub since: Instant,
}

/// An opaque value that belongs to a connection in addition to its socket.
pub type Attached = Arc<dyn Any + Send + Sync>;

/// A socket that is reused.
pub(crate) type Socket = (OwnedFd, Option<Attached>);

impl IdleSockets {
    /// Parks a silent socket. If it `carried_body`, it will be taken last. If `max` sockets are already parked, closes
    /// those that would be taken last. Returns how many were closed.
    pub fn park(&self, parked: IdleSocket, carried_body: bool, max: usize) -> usize {
        let mut all = self.lock();
        let surplus = (all.len() + 1).saturating_sub(max).min(all.len());
        let closed: Vec<_> = all.drain(..surplus).collect();
        let place = if carried_body { 0 } else { all.len() };
        all.insert(place, parked);
        drop(all);
        closed.len()
    }

    /// Takes the most recently parked socket that is still usable, of the joined ones or of the others. Also returns
    /// how many were closed on the way. If there is none, the caller opens a connection, and at most `room` sockets of
    /// the other kind stay parked, so that both kinds together do not exceed what the endpoint may have in use.
    pub fn take(&self, joined: bool, timeout: Duration, room: usize) -> (Option<Socket>, usize) {
        let mut closed = 0;
        loop {
            let mut all = self.lock();
            let Some(index) = all.iter().rposition(|parked| parked.joined == joined) else {
                let surplus = all.len().saturating_sub(room);
                let oldest: Vec<_> = all.drain(..surplus).collect();
                drop(all);
                return (None, closed + oldest.len());
            };
            let parked = all.remove(index);
            drop(all);
            if parked.is_fresh(timeout) {
                return (Some((parked.socket, parked.attached)), closed);
            }
            closed += 1;
        }
    }

    /// Closes sockets that have ended or were idle too long. Returns how many.
    pub fn reap(&self, timeout: Duration) -> usize {
        let mut parked = self.lock();
        let before = parked.len();
        parked.retain(|parked| parked.is_fresh(timeout));
        before - parked.len()
    }

    /// Closes all: the endpoint is gone.
    pub(crate) fn close(&self) {
        let closed = std::mem::take(&mut *self.lock());
        CLOSED.fetch_add(closed.len() as u64, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<IdleSocket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for IdleSockets {
    fn drop(&mut self) {
        self.close();
    }
}

impl IdleSocket {
    /// Not timed out, and silent: no unsolicited byte, no end, no error (poll reports all three).
    fn is_fresh(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        self.since.elapsed() < timeout && poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready == 0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn parked(socket: UnixStream, joined: bool) -> IdleSocket {
        IdleSocket { socket: socket.into(), joined, attached: None, since: Instant::now() }
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn joined_and_other_sockets_are_taken_separately_within_the_limit() {
        let idle = IdleSockets::default();
        let mut peers = Vec::new();
        let mut park = |joined| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            peers.push(theirs);
            idle.park(parked(ours, joined), false, 3)
        };
        assert_eq!([park(true), park(false), park(true), park(true)], [0, 0, 0, 1], "at most three");
        let take = |joined, room| {
            let (socket, closed) = idle.take(joined, LONG, room);
            (socket.is_some(), closed)
        };
        assert_eq!(take(true, 0), (true, 0));
        assert_eq!(take(false, 0), (true, 0));
        // There is none of that kind. One of the other kind may or may not stay next to the connection that is opened
        // now.
        assert_eq!(take(false, 1), (false, 0));
        assert_eq!(take(false, 0), (false, 1));
        assert_eq!(take(true, 9), (false, 0));
    }

    #[test]
    fn a_socket_that_has_carried_a_body_is_taken_last() {
        let idle = IdleSockets::default();
        let (mut parked_numbers, mut peers) = (Vec::new(), Vec::new());
        for carried_body in [false, true, false, true] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            parked_numbers.push(ours.as_raw_fd());
            peers.push(theirs);
            idle.park(parked(ours, false), carried_body, 9);
        }
        let taken = std::iter::from_fn(|| idle.take(false, LONG, 9).0);
        let taken: Vec<_> = taken.map(|(socket, _)| socket).collect();
        let taken: Vec<_> = taken.iter().map(AsRawFd::as_raw_fd).collect();
        assert_eq!(taken, [2, 0, 1, 3].map(|number| parked_numbers[number]));
    }

    #[test]
    fn sockets_that_are_not_silent_are_closed() {
        let idle = IdleSockets::default();
        let (ours, theirs) = UnixStream::pair().unwrap();
        idle.park(parked(ours, true), false, 3);
        drop(theirs);
        let (socket, closed) = idle.take(true, LONG, 3);
        assert_eq!((socket.is_some(), closed), (false, 1));
    }
}
