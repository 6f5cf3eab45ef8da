//! A socket to sluice on which every byte is ours. Blocking, with deadlines; no HTTP client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::rig::Rig;

/// Only a hang gets there.
const DEADLINE: Duration = Duration::from_secs(20);
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A connection and what has been read from it but not used.
pub(super) struct Wire {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Wire {
    /// Connects to the rig's sluice.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn connect(rig: &Rig) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&rig.address, DEADLINE).context("connect")?;
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

    /// Reads up to and with the first `end`.
    ///
    /// # Errors
    /// When the connection ends or falls silent before it, with what came.
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
    /// When the connection ends or falls silent before them.
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
    /// When it falls silent or breaks.
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
