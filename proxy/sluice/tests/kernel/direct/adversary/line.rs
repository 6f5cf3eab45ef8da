//! A socket, and bytes that were received but not processed; nothing a peer does makes it panic.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use socket2::SockRef;

/// A read or write that takes longer is stuck. Virtual machines have been seen to pause for half of this time.
pub(super) const BOUND: Duration = Duration::from_secs(60);

pub(super) struct Line {
    stream: TcpStream,
    received: Vec<u8>,
    room: Vec<u8>,
    /// Reads wait without a limit. A read of a socket in a sockmap may still return early, when it is woken for
    /// something else.
    patient: bool,
}

/// A head, parsed as far as the tests need.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) line: String,
    fields: Vec<(String, String)>,
}

impl Head {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        let pairs = lines.filter_map(|line| line.split_once(':'));
        let fields =
            pairs.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
        Self { line, fields }
    }

    /// The first field of this name, in lower case.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The same as a number.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    pub(super) fn status(&self) -> u16 {
        self.line.get(9..12).and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }
}

impl Line {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(BOUND))?;
        Ok(Self { patient: false, ..Self::patient(stream)? })
    }

    /// A line whose next message may take long to arrive.
    pub(super) fn patient(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(BOUND))?;
        Ok(Self { stream, received: Vec::new(), room: vec![0; 64 * 1024], patient: true })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub(super) fn finish(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    pub(super) fn reset(self) {
        let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    /// At most `most` bytes; none at the end.
    pub(super) fn some(&mut self, most: usize) -> io::Result<Vec<u8>> {
        if self.received.is_empty() && self.fill(most)? == 0 {
            return Ok(Vec::new());
        }
        let rest = self.received.split_off(most.min(self.received.len()));
        Ok(std::mem::replace(&mut self.received, rest))
    }

    fn fill(&mut self, most: usize) -> io::Result<usize> {
        loop {
            let most = most.min(self.room.len());
            match self.stream.read(&mut self.room[..most]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && self.patient => {}
                Ok(count) => {
                    self.received.extend_from_slice(&self.room[..count]);
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes up to `end`, which is removed; `None` if the connection ends before the first byte.
    fn until(&mut self, end: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut from = 0;
        loop {
            let found = self.received[from..].windows(end.len()).position(|window| window == end);
            if let Some(at) = found {
                let rest = self.received.split_off(from + at + end.len());
                let mut taken = std::mem::replace(&mut self.received, rest);
                taken.truncate(from + at);
                return Ok(Some(taken));
            }
            from = self.received.len().saturating_sub(end.len() - 1);
            if self.fill(16_384)? == 0 {
                let empty = self.received.is_empty();
                return if empty { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// The next head; `None` if the connection ends before it.
    pub(super) fn head(&mut self) -> io::Result<Option<Head>> {
        Ok(self.until(b"\r\n\r\n")?.map(|bytes| Head::parse(&bytes)))
    }

    /// The size of the next chunk.
    pub(super) fn chunk_size(&mut self) -> io::Result<usize> {
        let line = self.until(b"\r\n")?.ok_or(ErrorKind::UnexpectedEof)?;
        let digits = String::from_utf8_lossy(&line).into_owned();
        usize::from_str_radix(&digits, 16).map_err(|_| io::Error::other(format!("chunk size {digits:?}")))
    }

    /// The end of a chunk, or of the last one.
    pub(super) fn line_end(&mut self) -> io::Result<()> {
        match self.until(b"\r\n")? {
            Some(line) if line.is_empty() => Ok(()),
            Some(line) => {
                Err(io::Error::other(format!("{:?} at a chunk's end", String::from_utf8_lossy(&line))))
            }
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Receives and discards `count` bytes; false if the connection ends before.
    pub(super) fn skip(&mut self, mut count: usize) -> io::Result<bool> {
        while count > 0 {
            let got = self.some(count)?.len();
            if got == 0 {
                return Ok(false);
            }
            count -= got;
        }
        Ok(true)
    }

    /// Bytes that arrived without a request; `None` is the end.
    pub(super) fn unasked(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.stream.set_nonblocking(true)?;
        let filled = self.fill(16_384);
        self.stream.set_nonblocking(false)?;
        match filled {
            Ok(0) if self.received.is_empty() => Ok(None),
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(Some(self.received.clone())),
        }
    }
}
