//! One connection, and its requests, one at a time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::site::HOST;

/// Longer than any pause of the checks; a response that takes longer counts as failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum bytes of a body; those of the checks are short texts.
const BODY_BYTES_MAX: usize = 1 << 20;

/// A connection.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
}

/// A response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) text: String,
    /// Whether the connection ends after it.
    pub(super) last: bool,
}

impl Client {
    /// # Errors
    /// When nobody accepts.
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).context("connect")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Requests a path; `last` announces the end of the connection.
    ///
    /// # Errors
    /// When there is no complete response.
    pub(super) fn get(&mut self, path: &str, last: bool) -> Result<Answer> {
        self.get_of(HOST, path, last)
    }

    /// The same of another host.
    ///
    /// # Errors
    /// When there is no complete response.
    pub(super) fn get_of(&mut self, host: &str, path: &str, last: bool) -> Result<Answer> {
        let close = if last { "Connection: close\r\n" } else { "" };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{close}\r\n");
        self.stream.get_mut().write_all(request.as_bytes()).context("send")?;
        let first = self.line().context("no response")?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.with_context(|| format!("response starts with {first:?}"))?;
        let (mut length, mut last) = (0, false);
        loop {
            let line = self.line().context("the head ends early")?.to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().context(line)?,
                Some(("connection", value)) => last = value == "close",
                Some(_) => {}
                None => break,
            }
        }
        ensure!(length <= BODY_BYTES_MAX, "a body of {length} bytes");
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).context("the body ends early")?;
        Ok(Answer { status, text: String::from_utf8_lossy(&body).into_owned(), last })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line)? > 0, "the connection has ended");
        Ok(line.trim_end().to_owned())
    }
}
