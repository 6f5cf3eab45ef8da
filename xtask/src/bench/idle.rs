//! Connections that ask once and then wait: what they cost the server in memory.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::server::Server;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Every so many connections one is asked again at the end.
const ASK_AGAIN: usize = 100;
/// Who fails so often in a row will not do it any more.
const FAILURES_MAX: usize = 100;

/// What was found.
pub(super) struct Idle {
    /// Memory added by all of them.
    pub(super) added_kib: f64,
    /// Connections that were open at the end.
    pub(super) open: usize,
    /// Those that failed, or did not answer again.
    pub(super) errors: usize,
}

/// Lets this process and what it starts open as many descriptors as the system allows.
///
/// # Errors
/// When the limit cannot be read or set.
pub(super) fn raise_descriptor_limit() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raise the limit of descriptors")
}

/// Opens the connections, each with one request, and sees what `server` has grown by.
///
/// # Errors
/// When the server's memory cannot be read.
pub(super) fn measure(server: &Server, address: SocketAddr, path: &str, count: usize) -> Result<Idle> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let before = server.resident_kib()?;
    let mut open = Vec::with_capacity(count);
    let mut errors = 0;
    for _ in 0..count {
        match connect(address, &request) {
            Ok(stream) => open.push(stream),
            Err(_) => errors += 1,
        }
        if errors > FAILURES_MAX && open.len() < errors {
            break;
        }
    }
    let added_kib = server.resident_kib()? as f64 - before as f64;
    for stream in open.iter_mut().step_by(ASK_AGAIN) {
        if ask(stream, &request).is_err() {
            errors += 1;
        }
    }
    Ok(Idle { added_kib, open: open.len(), errors })
}

fn connect(address: SocketAddr, request: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    ask(&mut stream, request)?;
    Ok(stream)
}

/// One request and its whole answer, which must say how long it is.
fn ask(stream: &mut TcpStream, request: &str) -> Result<()> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let size = stream.read(&mut piece)?;
        anyhow::ensure!(size > 0, "closed");
        answer.extend_from_slice(&piece[..size]);
        if whole(&answer)? {
            return Ok(());
        }
    }
}

fn whole(answer: &[u8]) -> Result<bool> {
    let text = String::from_utf8_lossy(answer);
    let Some((head, _)) = text.split_once("\r\n\r\n") else { return Ok(false) };
    anyhow::ensure!(head.starts_with("HTTP/1.1 200"), "not 200");
    let length: usize = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .context("no Content-Length")?;
    // The head is ASCII: its length in the text is its length in bytes.
    Ok(answer.len() >= head.len() + 4 + length)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_answer_is_whole_with_its_last_byte() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n\xff\xfe";
        assert!(whole(answer).unwrap());
        assert!(!whole(&answer[..answer.len() - 1]).unwrap());
        assert!(!whole(b"HTTP/1.1 200 OK\r\n").unwrap());
        assert!(whole(b"HTTP/1.1 503 No\r\n\r\n").is_err());
    }
}
