//! One direction of a connection: known bytes are sent, and each is compared when it arrives.

use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use nix::poll::PollFlags;
use socket2::SockRef;
use twox_hash::XxHash64;

use super::pairs::{Pair, Way};
use super::trial::{Checked, Found, refused};
use super::wait::{Deadline, readable, ready};

/// A prime, so that no size or number of messages puts the same bytes at the same position.
const PERIOD: usize = 65_521;
/// Most bytes to send or compare at once.
const PIECE_MAX: usize = 65_536;

/// Bytes that identify their position in the stream.
pub(super) struct Pattern(Vec<u8>);

impl Pattern {
    pub(super) fn new() -> Self {
        let mut bytes = vec![0; PERIOD];
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        bytes.extend_from_within(..);
        Self(bytes)
    }

    /// The bytes at `offset`: at most `length`, and at most [`PERIOD`].
    fn at(&self, offset: usize, length: usize) -> &[u8] {
        let rest = self.0.get(offset % PERIOD..).unwrap_or_default();
        rest.get(..length.min(PERIOD)).unwrap_or(rest)
    }
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Got {
    Bytes(usize),
    /// Nothing is available now.
    Nothing,
    End,
    /// ECONNRESET.
    Reset,
}

/// One direction of a connection. Like the pair, it holds both ends.
pub(super) struct Flow {
    pattern: Rc<Pattern>,
    /// `None` once it is closed.
    from: Option<Rc<TcpStream>>,
    pub(super) to: Rc<TcpStream>,
    way: Way,
    deadline: Deadline,
    sent: usize,
    received: usize,
    hash_sent: XxHash64,
    hash_received: XxHash64,
    buffer: Vec<u8>,
}

impl Flow {
    pub(super) fn new(pattern: Rc<Pattern>, pair: &Pair, way: Way, deadline: Deadline) -> Self {
        let (from, to) = pair.ends(way);
        let (from, to) = (Some(Rc::clone(from)), Rc::clone(to));
        let hash = || XxHash64::with_seed(0);
        let (sent, received) = match way {
            Way::Out => (0, 0),
            // Different bytes than in the other direction, so that bytes that return to their sender are detected.
            Way::Back => (PERIOD / 2, PERIOD / 2),
        };
        let (hash_sent, hash_received, buffer) = (hash(), hash(), vec![0; PIECE_MAX]);
        Self { pattern, from, to, way, deadline, sent, received, hash_sent, hash_received, buffer }
    }

    /// Sends a message of at most `size` bytes. Returns how many were accepted; 0 if the connection is full.
    pub(super) fn try_send(&mut self, size: usize) -> Result<usize, Found> {
        let mut from = self.sender()?;
        let message = self.pattern.at(self.sent, size);
        loop {
            match from.write(message) {
                Ok(taken) => {
                    self.hash_sent.write(message.get(..taken).unwrap_or(message));
                    self.sent += taken;
                    return Ok(taken);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(refused("send")(error)),
            }
        }
    }

    /// Sends a message for which there must be room.
    pub(super) fn send(&mut self, size: usize) -> Checked {
        let taken = self.try_send(size)?;
        if taken == size {
            return Ok(());
        }
        Err(Found::new(format!("{taken} of {size} bytes were accepted with nothing unread, {}", self.way)))
    }

    /// Reads at most `most` bytes, and compares them.
    pub(super) fn receive(&mut self, most: usize) -> Result<Got, Found> {
        let most = most.min(self.buffer.len()).min(PERIOD);
        let buffer = self.buffer.get_mut(..most).unwrap_or_default();
        let length = match (&*self.to).read(buffer) {
            Ok(0) => return Ok(Got::End),
            Ok(length) => length,
            Err(error) if is_later(&error) => return Ok(Got::Nothing),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Got::Reset),
            Err(error) => return Err(refused("receive")(error)),
        };
        let came = buffer.get(..length).unwrap_or(buffer);
        self.hash_received.write(came);
        same(self.pattern.at(self.received, length), came, self.way)?;
        self.received += length;
        if self.received > self.sent {
            return Err(Found::new(format!("more was received than sent, {}", self.way)));
        }
        Ok(Got::Bytes(length))
    }

    /// Compares the next `length` bytes without consuming them. Returns how many there are.
    pub(super) fn peek(&mut self, length: usize) -> Result<Got, Found> {
        let buffer = self.buffer.get_mut(..length.min(PERIOD)).unwrap_or_default();
        match self.to.peek(buffer) {
            Ok(0) => Ok(Got::End),
            Ok(length) => {
                let came = buffer.get(..length).unwrap_or(buffer);
                same(self.pattern.at(self.received, length), came, self.way)?;
                Ok(Got::Bytes(length))
            }
            Err(error) if is_later(&error) => Ok(Got::Nothing),
            Err(error) => Err(refused("peek")(error)),
        }
    }

    /// Bytes sent and not received.
    pub(super) fn unread(&self) -> usize {
        self.sent.saturating_sub(self.received)
    }

    /// Reads until everything sent has arrived, in pieces of at most `piece()` bytes.
    pub(super) fn drain(&mut self, mut piece: impl FnMut() -> usize) -> Checked {
        while self.unread() > 0 {
            self.take(piece().max(1))?;
        }
        if self.hash_sent.finish() == self.hash_received.finish() {
            return Ok(());
        }
        Err(Found::new(format!("received bytes differ from those sent, {}", self.way)))
    }

    /// Reads until `rest` bytes remain unread.
    pub(super) fn drain_to(&mut self, rest: usize) -> Checked {
        while self.unread() > rest {
            self.take(self.unread() - rest)?;
        }
        Ok(())
    }

    /// Reads at most `most` of the bytes still to come, or waits for some.
    fn take(&mut self, most: usize) -> Checked {
        match self.receive(most)? {
            Got::Bytes(_) => Ok(()),
            Got::Nothing => self.wait_readable(),
            Got::End | Got::Reset => {
                let (unread, way) = (self.unread(), self.way);
                Err(Found::new(format!("the stream ended with {unread} bytes missing, {way}")))
            }
        }
    }

    /// Reads everything in large pieces.
    pub(super) fn drain_all(&mut self) -> Checked {
        self.drain(|| PIECE_MAX)
    }

    /// Ends the sending side, and checks that only the end follows.
    pub(super) fn finish(&mut self) -> Checked {
        self.shut_down()?;
        self.ends()
    }

    /// Half-closes the sender.
    pub(super) fn shut_down(&self) -> Checked {
        self.sender()?.shutdown(Shutdown::Write).map_err(refused("shutdown"))
    }

    /// Closes the sender, if the pair and the other flow are gone.
    pub(super) fn close(&mut self) {
        self.from = None;
    }

    /// Closes the sender likewise, but with a reset instead of sending the remaining bytes.
    pub(super) fn reset(&mut self) -> Checked {
        let linger = SockRef::from(self.sender()?).set_linger(Some(Duration::ZERO));
        linger.map_err(refused("setsockopt"))?;
        self.close();
        Ok(())
    }

    /// The sending end.
    pub(super) fn sender(&self) -> Result<&TcpStream, Found> {
        self.from.as_deref().ok_or_else(|| Found::new("the sender was closed before"))
    }

    /// Checks that everything sent arrives, then the end.
    pub(super) fn ends(&mut self) -> Checked {
        self.drain_all()?;
        loop {
            match self.receive(PIECE_MAX)? {
                Got::Nothing => self.wait_end()?,
                Got::Bytes(_) => {}
                Got::End => return Ok(()),
                Got::Reset => return Err(Found::new(format!("a reset instead of the end {}", self.way))),
            }
        }
    }

    /// Waits until there is something to read.
    pub(super) fn wait_readable(&self) -> Checked {
        readable(&self.to, self.deadline, &format!("{} bytes {}", self.unread(), self.way))
    }

    /// Waits for the end.
    pub(super) fn wait_end(&self) -> Checked {
        readable(&self.to, self.deadline, &format!("the end {}", self.way))
    }
}

/// Waits until any of the flows can continue: something to read, or room if something is still to be sent.
pub(super) fn wait_any(flows: &[(&Flow, bool)], deadline: Deadline) -> Checked {
    let mut asked = Vec::with_capacity(flows.len() * 2);
    for (flow, sends) in flows {
        asked.push((&*flow.to, PollFlags::POLLIN));
        if *sends {
            asked.push((flow.sender()?, PollFlags::POLLOUT));
        }
    }
    ready(&asked, deadline, "a transfer to continue")
}

/// Whether to repeat the call, possibly after waiting.
pub(super) fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn same(sent: &[u8], came: &[u8], way: Way) -> Checked {
    if sent == came {
        return Ok(());
    }
    let place = sent.iter().zip(came).take_while(|(sent, came)| sent == came).count();
    Err(Found::new(format!(
        "received bytes differ from those sent, {way} (from byte {place} of {})",
        came.len()
    )))
}
