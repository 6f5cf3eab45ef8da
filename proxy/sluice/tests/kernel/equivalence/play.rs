//! Plays a script on two sockets, each end on its own thread, without blocking.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::SockRef;

use super::script::{End, Last, Script, Step};
use crate::proxy_support::PATIENCE;

/// What one end has seen.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) bytes: Vec<u8>,
    /// How it ended, unless this end closed first.
    pub(super) last: Option<Last>,
    pub(super) write_failed: bool,
}

/// The progress of each end, which the other one waits for.
#[derive(Default)]
struct Progress {
    steps: [AtomicUsize; 2],
    received: [AtomicUsize; 2],
    /// Has closed, or can do no more: the other end must not wait for it.
    gone: [AtomicBool; 2],
}

/// The bytes that an end writes, in order; they differ between the ends.
pub(super) fn content(end: &End, at: usize) -> Vec<u8> {
    let mut bytes = vec![0; end.total()];
    fastrand::Rng::with_seed(at as u64 + 1).fill(&mut bytes);
    bytes
}

/// Plays both ends to completion.
pub(super) fn play(script: &Script, sockets: [TcpStream; 2]) -> [Seen; 2] {
    let progress = Progress::default();
    let [active, passive] = sockets;
    thread::scope(|scope| {
        let progress = &progress;
        let other = scope.spawn(move || Player::new(script, 1, passive, progress).run());
        let seen = Player::new(script, 0, active, progress).run();
        [seen, other.join().unwrap()]
    })
}

struct Player<'a> {
    script: &'a Script,
    at: usize,
    /// `None` once closed.
    socket: Option<TcpStream>,
    content: Vec<u8>,
    step: usize,
    written: usize,
    /// The position in all written bytes at which the current step ends.
    until: usize,
    /// A write has reported the reset. The kernel reports it only once: a later read sees an end.
    reset_told: bool,
    seen: Seen,
    progress: &'a Progress,
}

impl<'a> Player<'a> {
    fn new(script: &'a Script, at: usize, socket: TcpStream, progress: &'a Progress) -> Self {
        socket.set_nonblocking(true).unwrap();
        // Otherwise small pieces wait for each other's acknowledgement.
        socket.set_nodelay(true).unwrap();
        let content = content(&script.ends[at], at);
        let seen = Seen { bytes: Vec::new(), last: None, write_failed: false };
        Self {
            script,
            at,
            socket: Some(socket),
            content,
            step: 0,
            written: 0,
            until: 0,
            reset_told: false,
            seen,
            progress,
        }
    }

    fn run(mut self) -> Seen {
        let mut moved = Instant::now();
        while !self.is_done() {
            let (wrote, read) = (self.act(), self.read());
            if wrote || read {
                moved = Instant::now();
                continue;
            }
            assert!(
                moved.elapsed() < PATIENCE,
                "end {} is stuck: {} in {:?}",
                self.at,
                self.state(),
                self.script
            );
            self.pause();
        }
        self.leave();
        self.seen
    }

    fn state(&self) -> String {
        format!(
            "{} steps done, {} bytes written, {} read, {:?}",
            self.step,
            self.written,
            self.seen.bytes.len(),
            self.seen.last
        )
    }

    fn end(&self) -> &'a End {
        &self.script.ends[self.at]
    }

    fn is_done(&self) -> bool {
        // One more step than listed is the shutdown at the end.
        let acted = self.step > self.end().steps.len() || self.seen.write_failed;
        self.socket.is_none() || (acted && self.seen.last.is_some())
    }

    /// Waits until the socket may have something, or the other end has progressed, for which there is no event.
    fn pause(&self) {
        let Some(socket) = &self.socket else { return };
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, self.may_read());
        events.set(PollFlags::POLLOUT, self.written < self.until);
        let mut polled = [PollFd::new(socket.as_fd(), events)];
        // A socket that is reset or completely closed always polls as ready; then this is a yield.
        let _ = poll(&mut polled, PollTimeout::from(2_u8));
        if self.seen.last.is_some() {
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn may_read(&self) -> bool {
        self.seen.last.is_none() && self.other_is_at(&self.progress.steps, self.end().read_after)
    }

    /// One piece, or one step that is not a write; false if it has to wait.
    fn act(&mut self) -> bool {
        if self.seen.write_failed {
            return false;
        }
        let done = match self.end().steps.get(self.step).copied() {
            Some(Step::Write { bytes, piece }) => return self.write(bytes, piece),
            Some(Step::Await(steps)) => self.other_is_at(&self.progress.steps, steps),
            Some(Step::AwaitDelivery) => self.other_is_at(&self.progress.received, self.written),
            Some(Step::AwaitAll) => {
                self.seen.bytes.len() >= self.script.ends[1 - self.at].total() || self.seen.last.is_some()
            }
            Some(Step::AwaitEnd) => self.seen.last.is_some(),
            Some(Step::HalfClose) => self.shutdown(),
            None if self.step == self.end().steps.len() => self.shutdown(),
            None => false,
            Some(Step::Close) => {
                self.socket = None;
                true
            }
            Some(Step::Reset) => {
                let socket = self.socket.take().unwrap();
                SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
                true
            }
        };
        self.advance(done)
    }

    fn other_is_at(&self, progress: &[AtomicUsize; 2], wanted: usize) -> bool {
        let other = 1 - self.at;
        progress[other].load(Ordering::Acquire) >= wanted || self.progress.gone[other].load(Ordering::Acquire)
    }

    fn leave(&self) {
        self.progress.gone[self.at].store(true, Ordering::Release);
    }

    fn advance(&mut self, done: bool) -> bool {
        if done {
            self.step += 1;
            self.progress.steps[self.at].store(self.step, Ordering::Release);
        }
        done
    }

    fn shutdown(&mut self) -> bool {
        // A reset connection has nothing left to shut down.
        let _ = self.socket.as_ref().unwrap().shutdown(Shutdown::Write);
        true
    }

    fn write(&mut self, bytes: usize, piece: usize) -> bool {
        if self.until <= self.written {
            self.until = self.written + bytes;
        }
        let to = self.until.min(self.written.saturating_add(piece));
        match self.socket.as_mut().unwrap().write(&self.content[self.written..to]) {
            Ok(count) => self.written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => {
                self.reset_told = error.kind() == ErrorKind::ConnectionReset;
                self.seen.write_failed = true;
                self.leave();
                return true;
            }
        }
        let done = self.written == self.until;
        self.advance(done);
        true
    }

    fn read(&mut self) -> bool {
        if self.socket.is_none() || !self.may_read() {
            return false;
        }
        let mut room = [0; 65_536];
        let wanted = self.end().read_piece.min(room.len());
        match self.socket.as_mut().unwrap().read(&mut room[..wanted]) {
            Ok(0) => self.seen.last = Some(if self.reset_told { Last::Reset } else { Last::Eof }),
            Ok(count) => self.seen.bytes.extend_from_slice(&room[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => self.seen.last = Some(Last::Reset),
        }
        self.progress.received[self.at].store(self.seen.bytes.len(), Ordering::Release);
        true
    }
}
