//! AcceptOp a connection together with its peer's address.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use io_uring::opcode;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockAddr, SockAddrStorage};

use super::{Fd, Finished, InFlight, lost, outcome, raw, submit};

struct Peer {
    storage: SockAddrStorage,
    length: libc::socklen_t,
}

struct AcceptData {
    _fd: Fd,
    /// Boxed: the kernel writes the address here when a connection comes.
    peer: Box<Peer>,
}

impl Finished for AcceptData {
    type Output = io::Result<(OwnedFd, SockAddr)>;

    fn finish(self, result: i32) -> Self::Output {
        outcome(result)?;
        // SAFETY: a non-negative result of accept is a new descriptor that nobody else knows of.
        let socket = unsafe { OwnedFd::from_raw_fd(result) };
        let Peer { storage, length } = *self.peer;
        // SAFETY: the kernel filled `storage` with an address of `length` bytes; the operation is over,
        // so nothing writes to it any more.
        let address = unsafe { SockAddr::new(storage, length) };
        Ok((socket, address))
    }

    fn lost() -> Self::Output {
        Err(lost())
    }
}

/// An accept under way. Dropped, it goes on; a connection that it brings then is closed.
pub struct AcceptOp(InFlight<AcceptData>);

/// Begins to accept one connection from the listening socket `fd`.
pub fn accept(fd: &Fd) -> AcceptOp {
    let storage = SockAddrStorage::zeroed();
    let mut peer = Box::new(Peer { length: storage.size_of(), storage });
    let address: *mut SockAddrStorage = &raw mut peer.storage;
    let length = &raw mut peer.length;
    let entry = opcode::Accept::new(raw(fd), address.cast(), length).flags(libc::SOCK_CLOEXEC).build();
    // SAFETY: the data has the descriptor and, boxed, the place for the address and its length.
    AcceptOp(unsafe { submit(AcceptData { _fd: Fd::clone(fd), peer }, entry) })
}

impl AcceptOp {
    /// Calls it off: it ends soon, with a connection if one has just come.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

impl Future for AcceptOp {
    type Output = io::Result<(OwnedFd, SockAddr)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

/// Accepts a connection that waits in the queue of `fd`; none if none does.
///
/// Whoever no longer accepts from a socket that others accept from as well owes them this: the kernel wakes one of
/// those who wait (`poll_exclusive`, 5.x), and where that one calls its wait off at the same time, nobody else hears of
/// the connection. The socket stays blocking, which is theirs too.
///
/// # Errors
/// Those of accept(2); ECANCELED if somebody else took what waited.
pub async fn accept_waiting(fd: &Fd) -> io::Result<Option<(OwnedFd, SockAddr)>> {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::ZERO)? == 0 {
        return Ok(None);
    }
    accept_at_once(fd).await.map(Some)
}

/// Accepts up to `most` of the connections that wait in the queue of `fd`, in one pass of the ring; fewer when no more
/// wait, when somebody else takes them, or when the kernel refuses, which the next [`accept`] reports.
///
/// Each wait that is called off may have been woken for a connection that others are then not told of. So where others
/// accept from the socket too, an [`accept`] or as many [`accept_waiting`] must follow.
pub async fn accept_burst(fd: &Fd, most: usize) -> Vec<(OwnedFd, SockAddr)> {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    if !poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
        return Vec::new();
    }
    let accepting: Vec<_> = (0..most).map(|_| accept_at_once(fd)).collect();
    let mut accepted = Vec::with_capacity(most);
    for one in accepting {
        accepted.extend(one.await);
    }
    accepted
}

/// Accepts a connection that waits; ECANCELED if none does.
fn accept_at_once(fd: &Fd) -> AcceptOp {
    let accepting = accept(fd);
    // The kernel takes both in order: it tries once, and then the wait is called off.
    accepting.cancel();
    accepting
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::{TcpListener, TcpStream};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;
    use crate as ring;

    const ROUNDS: usize = 200;

    /// A wait that is called off by the first system call after it was woken ends without what it was woken for.
    #[test]
    fn what_a_cancelled_wait_was_woken_for_can_still_be_had() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (waits, connected) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let client = thread::spawn({
            let (waits, connected) = (Arc::clone(&waits), Arc::clone(&connected));
            move || {
                for round in 1..=ROUNDS {
                    while waits.load(Ordering::Acquire) < round {
                        thread::yield_now();
                    }
                    let _client = TcpStream::connect(address).unwrap();
                    connected.store(round, Ordering::Release);
                }
            }
        });
        let ran = ring::run(async {
            let socket: Fd = Rc::new(listener.into());
            for round in 1..=ROUNDS {
                let mut wait = accept(&socket);
                tokio::task::yield_now().await;
                waits.store(round, Ordering::Release);
                while connected.load(Ordering::Acquire) < round {
                    std::hint::spin_loop();
                }
                wait.cancel();
                let accepted = match (&mut wait).await {
                    Ok(_) => true,
                    Err(_) => accept_waiting(&socket).await.unwrap().is_some(),
                };
                assert!(accepted, "connection {round} is lost");
                assert!(accept_waiting(&socket).await.unwrap().is_none());
            }
        });
        if let Err(error) = ran {
            eprintln!("skipped: no ring: {error}");
            waits.store(ROUNDS, Ordering::Release);
        }
        client.join().unwrap();
    }

    #[test]
    fn a_burst_takes_what_waits_and_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let clients: Vec<_> =
            (0..20).map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap()).collect();
        let ran = ring::run(async {
            let socket: Fd = Rc::new(listener.into());
            let mut peers = Vec::new();
            for expected in [16, 4, 0] {
                let burst = accept_burst(&socket, 16).await;
                assert_eq!(burst.len(), expected);
                peers.extend(burst.iter().map(|(_, peer)| peer.as_socket().unwrap()));
            }
            let connected: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
            assert_eq!(peers, connected);
        });
        if let Err(error) = ran {
            eprintln!("skipped: no ring: {error}");
        }
    }
}
