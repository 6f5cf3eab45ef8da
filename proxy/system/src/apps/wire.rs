//! A raw socket to sluice. Blocking, with time limits; not an HTTP client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::libc::linger;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, setsockopt, sockopt};

use super::rig::Rig;

/// Reached only by a hang.
const DEADLINE: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A connection, and bytes that were read but not used.
pub(super) struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// A response.
pub(super) struct Reply {
    /// Status line and fields, including the empty line.
    pub(super) head: String,
    /// Without its framing.
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// The status; 0 if there is none.
    pub(super) fn status(&self) -> u16 {
        self.head.get(9..12).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// The first field of a name.
    pub(super) fn field(&self, name: &str) -> Option<String> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    }

    /// The body as text, without surrounding whitespace.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim().to_owned()
    }
}

impl Wire {
    /// Connects to the rig's sluice.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn connect(rig: &Rig) -> Result<Self> {
        Self::to(rig.address)
    }

    /// Connects to any address.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn to(address: SocketAddr) -> Result<Self> {
        Self::over(TcpStream::connect_timeout(&address, DEADLINE).context("connect")?)
    }

    /// Connects to an IPv4 address with a receive buffer of this size from the first byte on.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn narrow(address: SocketAddr, bytes: usize) -> Result<Self> {
        let SocketAddr::V4(address) = address else { bail!("{address} is not IPv4") };
        let socket = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::RcvBuf, &bytes).context("SO_RCVBUF")?;
        socket::connect(socket.as_raw_fd(), &SockaddrIn::from(address)).context("connect")?;
        Self::over(socket.into())
    }

    fn over(stream: TcpStream) -> Result<Self> {
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, unread: Vec::new() })
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// When they cannot be written in time.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("send")
    }

    /// Sends a request head with the rig's Host and `fields`, each with its CRLF.
    ///
    /// # Errors
    /// When it cannot be written in time.
    pub(super) fn ask(&mut self, rig: &Rig, method: &str, target: &str, fields: &str) -> Result<()> {
        let head = format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n{fields}\r\n", rig.host);
        self.send(head.as_bytes())
    }

    /// Sets the kernel's receive buffer.
    ///
    /// # Errors
    /// When it refuses.
    pub(super) fn receive_buffer(&self, bytes: usize) -> Result<()> {
        receive_buffer(&self.stream, bytes)
    }

    /// The connection, once everything received was read.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Closes with a reset.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn abort(self) -> Result<()> {
        let at_once = linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&self.stream, sockopt::Linger, &at_once).context("SO_LINGER")
    }

    /// Reads a response with Content-Length or in chunks.
    ///
    /// # Errors
    /// When it has neither, or as for `exactly`.
    pub(super) fn reply(&mut self) -> Result<Reply> {
        let head = String::from_utf8_lossy(&self.until(b"\r\n\r\n")?).into_owned();
        let mut reply = Reply { head, body: Vec::new() };
        reply.body = match (reply.field("content-length"), reply.field("transfer-encoding")) {
            (Some(length), None) => self.exactly(length.parse().context("the length")?)?,
            (None, Some(_)) => self.chunks()?,
            _ => bail!("neither a length nor chunks: {}", reply.head),
        };
        Ok(reply)
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = String::from_utf8_lossy(&self.until(b"\r\n")?).into_owned();
            let size =
                usize::from_str_radix(line.trim_end(), 16).with_context(|| format!("chunk {line:?}"))?;
            let piece = self.exactly(size + 2)?;
            if size == 0 {
                return Ok(body);
            }
            body.extend_from_slice(&piece[..size]);
        }
    }

    /// Reads up to and including the first `end`.
    ///
    /// # Errors
    /// When the connection ends or stalls before it, with the bytes received.
    pub(super) fn until(&mut self, end: &[u8]) -> Result<Vec<u8>> {
        loop {
            let at = self.unread.windows(end.len()).position(|w| w == end);
            if let Some(at) = at {
                return Ok(self.unread.drain(..at + end.len()).collect());
            }
            if self.more()? == 0 {
                bail!("the connection ended; {}", self.seen());
            }
        }
    }

    /// Reads exactly `count` bytes.
    ///
    /// # Errors
    /// When the connection ends or stalls before them.
    pub(super) fn exactly(&mut self, count: usize) -> Result<Vec<u8>> {
        while self.unread.len() < count {
            if self.more()? == 0 {
                bail!("the connection ended; {}", self.seen());
            }
        }
        Ok(self.unread.drain(..count).collect())
    }

    /// Reads to the end of the connection.
    ///
    /// # Errors
    /// When it stalls or breaks.
    pub(super) fn rest(&mut self) -> Result<Vec<u8>> {
        while self.more()? > 0 {}
        Ok(std::mem::take(&mut self.unread))
    }

    fn more(&mut self) -> Result<usize> {
        if self.unread.len() > ANSWER_BYTES_MAX {
            bail!("more than {ANSWER_BYTES_MAX} bytes; {}", self.seen());
        }
        let mut piece = [0; 16384];
        let count = self.stream.read(&mut piece).with_context(|| self.seen())?;
        self.unread.extend_from_slice(&piece[..count]);
        Ok(count)
    }

    fn seen(&self) -> String {
        let start = &self.unread[..self.unread.len().min(300)];
        format!("read so far: {:?}", String::from_utf8_lossy(start))
    }
}

/// Sets the kernel's receive buffer for `stream`.
///
/// # Errors
/// When it refuses.
pub(super) fn receive_buffer(stream: &TcpStream, bytes: usize) -> Result<()> {
    setsockopt(stream, sockopt::RcvBuf, &bytes).context("SO_RCVBUF")
}
