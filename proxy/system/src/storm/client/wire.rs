//! HTTP/1.1 responses from a connection: parsed strictly, because the next one follows each.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{sleep, timeout};

use super::PATIENCE;

const HEAD_BYTES_MAX: usize = 128 << 10;
const RECEIVE_BYTES: usize = 16 << 10;

/// Where a body ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Framing {
    None,
    Counted(usize),
    Chunked,
    Close,
}

/// A response head.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AnswerHead {
    pub(super) status: u16,
    pub(super) framing: Framing,
    pub(super) token: Option<Vec<u8>>,
    pub(super) idle: bool,
    pub(super) coding: Option<Vec<u8>>,
    /// Whether the connection ends after it.
    pub(super) last: bool,
}

/// Why there is nothing more to read.
#[derive(Debug)]
pub(super) enum Stop {
    /// In order.
    End,
    /// By a reset, or a TLS session that is cut.
    Broken,
    /// Nothing came for too long.
    Hang,
    /// It is not HTTP.
    Unreadable,
    /// The response is wrong, and its rest adds no information.
    Enough,
}

/// The receiving half of a connection.
pub(super) struct Wire<R> {
    stream: R,
    pub(super) received: Vec<u8>,
    /// Maximum bytes of a read, and the pause after it.
    pub(super) pace: Option<(usize, Duration)>,
}

impl<R: AsyncRead + Unpin> Wire<R> {
    pub(super) fn new(stream: R, pace: Option<(usize, Duration)>) -> Self {
        Self { stream, received: Vec::new(), pace }
    }

    pub(super) async fn receive(&mut self) -> Result<(), Stop> {
        let most = self.pace.map_or(RECEIVE_BYTES, |(most, _)| most);
        let mut limited = (&mut self.stream).take(most as u64);
        self.received.reserve(most);
        let received = timeout(PATIENCE, limited.read_buf(&mut self.received)).await;
        if let Some((_, rest)) = self.pace {
            sleep(rest).await;
        }
        match received {
            Err(_) => Err(Stop::Hang),
            Ok(Ok(0)) => Err(Stop::End),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Ok(Err(_)) => Err(Stop::Broken),
        }
    }

    /// The next head.
    pub(super) async fn head(&mut self, to_head: bool) -> Result<AnswerHead, Stop> {
        loop {
            if let Some(end) = self.received.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = AnswerHead::parse(&self.received[..end], to_head).ok_or(Stop::Unreadable)?;
                self.received.drain(..end + 4);
                return Ok(head);
            }
            let begun = self.received.len().min(5);
            if self.received[..begun] != b"HTTP/"[..begun] || self.received.len() > HEAD_BYTES_MAX {
                return Err(Stop::Unreadable);
            }
            self.receive().await?;
        }
    }

    /// Takes up to `most` available bytes, and waits if there are none.
    pub(super) async fn some(&mut self, most: usize) -> Result<Vec<u8>, Stop> {
        if self.received.is_empty() {
            self.receive().await?;
        }
        Ok(self.received.drain(..most.min(self.received.len())).collect())
    }

    /// A line without its end.
    pub(super) async fn line(&mut self) -> Result<Vec<u8>, Stop> {
        loop {
            if let Some(end) = self.received.windows(2).position(|two| two == b"\r\n") {
                let mut line: Vec<u8> = self.received.drain(..end + 2).collect();
                line.truncate(end);
                return Ok(line);
            }
            if self.received.len() > HEAD_BYTES_MAX {
                return Err(Stop::Unreadable);
            }
            self.receive().await?;
        }
    }
}

impl AnswerHead {
    fn parse(head: &[u8], to_head: bool) -> Option<Self> {
        let text = std::str::from_utf8(head).ok()?;
        let mut lines = text.split("\r\n");
        let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let mut answer =
            Self { status, framing: Framing::Close, token: None, idle: false, coding: None, last: false };
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" if answer.framing != Framing::Chunked => {
                    answer.framing = Framing::Counted(value.parse().ok()?);
                }
                "transfer-encoding" => answer.framing = Framing::Chunked,
                "connection" => answer.last |= value.eq_ignore_ascii_case("close"),
                "x-token" => answer.token = Some(value.as_bytes().to_vec()),
                "x-idle" => answer.idle = true,
                "content-encoding" => answer.coding = Some(value.as_bytes().to_vec()),
                _ => {}
            }
        }
        if to_head || matches!(status, 100..=199 | 204 | 304) {
            answer.framing = Framing::None;
        }
        answer.last |= answer.framing == Framing::Close;
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_head_says_where_its_body_ends() {
        let framing =
            |text: &str, to_head| AnswerHead::parse(text.as_bytes(), to_head).map(|head| head.framing);
        assert_eq!(framing("HTTP/1.1 200 OK\r\nContent-Length: 7", false), Some(Framing::Counted(7)));
        assert_eq!(framing("HTTP/1.1 200 OK\r\nContent-Length: 7", true), Some(Framing::None));
        assert_eq!(framing("HTTP/1.1 304 Not Modified\r\nContent-Length: 7", false), Some(Framing::None));
        assert_eq!(framing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", false), Some(Framing::Chunked));
        assert_eq!(framing("HTTP/1.1 200 OK\r\nServer: x", false), Some(Framing::Close));
        assert_eq!(framing("HTTP/1.1 2x0 OK", false), None);
    }
}
