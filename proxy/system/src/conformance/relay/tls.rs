//! The same bytes within a TLS session. Ends are forwarded as they come: close_notify as FIN, and a reset if the proxy
//! ended without one.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::reset;

const PIECE: usize = 16 * 1024;

/// A client of the proxy's TLS listener.
pub(crate) struct Client {
    /// Address of the proxy.
    pub(crate) proxy: SocketAddr,
    pub(crate) config: Arc<ClientConfig>,
}

/// One connection: plain to the runner, TLS to the proxy.
struct Session {
    plain: TcpStream,
    wire: TcpStream,
    tls: ClientConnection,
    /// Decrypted, not yet accepted by the runner.
    pending: Vec<u8>,
    plain_ended: bool,
    /// The proxy's close_notify, or a bare end, which is forwarded as a reset.
    wire_ended: Option<bool>,
}

impl Client {
    /// Carries one connection until both sides have ended.
    ///
    /// # Errors
    /// When either breaks; the runner gets a reset then.
    pub(crate) fn serve(&self, plain: TcpStream, carried: &AtomicUsize) -> Result<()> {
        let broken = plain.try_clone()?;
        self.carry(plain, carried).inspect_err(|_| drop(reset(&broken)))
    }

    fn carry(&self, plain: TcpStream, carried: &AtomicUsize) -> Result<()> {
        let wire = TcpStream::connect(self.proxy)?;
        for stream in [&plain, &wire] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        let name = ServerName::from(self.proxy.ip());
        let tls = ClientConnection::new(Arc::clone(&self.config), name)?;
        let mut session =
            Session { plain, wire, tls, pending: Vec::new(), plain_ended: false, wire_ended: None };
        let mut begun = false;
        while session.step()? {
            if !begun && !session.tls.is_handshaking() {
                begun = true;
                carried.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

impl Session {
    /// Waits until something can be done, and does it; returns whether there is more.
    fn step(&mut self) -> Result<bool> {
        if self.pending.is_empty()
            && let Some(clean) = self.wire_ended
        {
            if !clean {
                reset(&self.plain)?;
            }
            return Ok(false);
        }
        let (plain, wire) = self.wait()?;
        if wire.contains(PollFlags::POLLOUT) {
            retried(self.tls.write_tls(&mut self.wire))?;
        }
        if wire.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            self.read_proxy()?;
        }
        if plain.contains(PollFlags::POLLOUT)
            && let Some(count) = retried(self.plain.write(&self.pending))?
        {
            self.pending.drain(..count);
        }
        if plain.intersects(PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR) {
            self.read_runner()?;
        }
        Ok(true)
    }

    /// Reads from a side only when the other has accepted what was read before.
    fn wait(&self) -> Result<(PollFlags, PollFlags)> {
        let mut wanted = (PollFlags::empty(), PollFlags::empty());
        wanted.0.set(PollFlags::POLLOUT, !self.pending.is_empty());
        wanted.0.set(
            PollFlags::POLLIN,
            !self.plain_ended && !self.tls.wants_write() && !self.tls.is_handshaking(),
        );
        wanted.1.set(PollFlags::POLLOUT, self.tls.wants_write());
        wanted.1.set(PollFlags::POLLIN, self.pending.is_empty() && self.wire_ended.is_none());
        let mut both = [PollFd::new(self.plain.as_fd(), wanted.0), PollFd::new(self.wire.as_fd(), wanted.1)];
        poll(&mut both, PollTimeout::NONE)?;
        let got = |at: usize| both[at].revents().unwrap_or(PollFlags::empty());
        Ok((got(0), got(1)))
    }

    fn read_proxy(&mut self) -> Result<()> {
        match retried(self.tls.read_tls(&mut self.wire))? {
            None => return Ok(()),
            Some(0) => self.wire_ended = self.wire_ended.or(Some(false)),
            Some(_) => {}
        }
        let state = self.tls.process_new_packets()?;
        let start = self.pending.len();
        self.pending.resize(start + state.plaintext_bytes_to_read(), 0);
        self.tls.reader().read_exact(&mut self.pending[start..])?;
        if state.peer_has_closed() {
            self.wire_ended = Some(true);
        }
        Ok(())
    }

    fn read_runner(&mut self) -> Result<()> {
        let mut piece = [0; PIECE];
        match retried(self.plain.read(&mut piece))? {
            None => {}
            Some(0) => {
                self.plain_ended = true;
                self.tls.send_close_notify();
                retried(self.tls.write_tls(&mut self.wire))?;
                self.wire.shutdown(Shutdown::Write)?;
            }
            Some(count) => self.tls.writer().write_all(&piece[..count])?,
        }
        Ok(())
    }
}

/// `None` if it should be retried later.
fn retried(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}
