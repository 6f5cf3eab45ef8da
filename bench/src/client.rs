//! A minimal HTTP client: one request at a time, and only responses with Content-Length.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

const TIMEOUT: Duration = Duration::from_secs(30);
const END: &[u8] = b"\r\n\r\n";

/// A connection.
pub(super) struct Client {
    stream: Box<dyn Stream>,
}

/// The transport of a connection.
trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A request; `connection` is the value of its Connection field.
pub(super) fn get(address: SocketAddr, path: &str, connection: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: {connection}\r\n\r\n")
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// The connection is not accepted in time.
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        Ok(Self { stream: Box::new(connect(address)?) })
    }

    /// Connects and starts a TLS session with `config`.
    ///
    /// # Errors
    /// The connection is not accepted in time.
    pub(super) fn secure(address: SocketAddr, config: &Arc<ClientConfig>) -> Result<Self> {
        let session = ClientConnection::new(Arc::clone(config), "localhost".try_into()?)?;
        Ok(Self { stream: Box::new(StreamOwned::new(session, connect(address)?)) })
    }

    /// Sends a request and receives the whole response.
    ///
    /// # Errors
    /// The response is not 200, is incomplete, or has no Content-Length.
    pub(super) fn ask(&mut self, request: &str) -> Result<()> {
        self.stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut piece = [0; 4096];
        while !whole(&answer)? {
            let size = self.stream.read(&mut piece)?;
            ensure!(size > 0, "closed");
            answer.extend_from_slice(&piece[..size]);
        }
        Ok(())
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn whole(answer: &[u8]) -> Result<bool> {
    let Some(size) = answer.windows(END.len()).position(|bytes| bytes == END) else { return Ok(false) };
    let head = String::from_utf8_lossy(&answer[..size]);
    ensure!(head.starts_with("HTTP/1.1 200"), "not 200");
    let length: usize = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .context("no Content-Length")?;
    Ok(answer.len() >= size + END.len() + length)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn response_is_complete_with_its_last_byte() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n\xff\xfe";
        assert!(whole(answer).unwrap());
        assert!(!whole(&answer[..answer.len() - 1]).unwrap());
        assert!(!whole(b"HTTP/1.1 200 OK\r\n").unwrap());
        assert!(whole(b"HTTP/1.1 503 No\r\n\r\n").is_err());
    }
}
