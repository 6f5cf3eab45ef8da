//! An exactly known number of requests, over raw sockets. Only checks that each was answered.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

/// Reached only by a hang.
const DEADLINE: Duration = Duration::from_secs(60);
/// A first SYN is retransmitted after one second.
const FULL: Duration = Duration::from_millis(1_500);
/// Far above the backlog that std requests.
const FILL_MAX: usize = 4_200;

/// `clients` at a time, each `rounds` times: a new connection and one request. All clients of a round start together.
///
/// # Errors
/// When one does not get 200.
pub(super) fn new_connections(to: SocketAddr, path: &str, clients: usize, rounds: usize) -> Result<()> {
    let together = Barrier::new(clients);
    each(clients, || {
        let mut worst = Ok(());
        for _ in 0..rounds {
            // Also after a failure: the others wait here.
            together.wait();
            worst = worst.and(one(to, path));
        }
        worst
    })
}

/// `clients` at a time, each `requests` over one connection.
///
/// # Errors
/// When one does not get 200.
pub(super) fn kept_connections(to: SocketAddr, clients: usize, requests: usize) -> Result<()> {
    each(clients, || {
        let mut stream = connect(to)?;
        for _ in 0..requests {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
            read_counted(&mut stream)?;
        }
        Ok(())
    })
}

/// This many requests whose clients disconnect when the response arrives, without reading it: each is a reset.
///
/// # Errors
/// When no response arrives.
pub(super) fn resets(to: SocketAddr, count: usize) -> Result<()> {
    for _ in 0..count {
        let mut stream = connect(to)?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        ensure!(stream.peek(&mut [0])? == 1, "the connection ended without a response");
    }
    Ok(())
}

/// Opens one connection more than a listener accepts, for long enough that a SYN is retransmitted. Returns the number
/// that it accepted.
///
/// # Errors
/// When its queue does not become full.
pub(super) fn fill(listener: &TcpListener) -> Result<u64> {
    let to = listener.local_addr()?;
    let mut held = Vec::new();
    for _ in 0..FILL_MAX {
        match TcpStream::connect_timeout(&to, FULL) {
            Ok(stream) => held.push(stream),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Ok(held.len() as u64),
            Err(error) => return Err(error).context("fill the queue"),
        }
    }
    bail!("{FILL_MAX} connections did not fill the queue");
}

fn each(clients: usize, run: impl Fn() -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let started: Vec<_> = (0..clients).map(|_| scope.spawn(&run)).collect();
        started.into_iter().try_for_each(|client| client.join().map_err(|_| anyhow!("panicked"))?)
    })
}

fn one(to: SocketAddr, path: &str) -> Result<()> {
    let mut stream = connect(to)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "response {:?}", String::from_utf8_lossy(&answer));
    Ok(())
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, DEADLINE).with_context(|| format!("connect {to}"))?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads one response with a length, to its end.
fn read_counted(stream: &mut TcpStream) -> Result<()> {
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let count = stream.read(&mut piece)?;
        ensure!(count > 0, "the connection ended: {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        ensure!(head.starts_with("HTTP/1.1 200"), "response {head:?}");
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.context("a response without a length")?.trim().parse()?;
        if body.len() >= length {
            return Ok(());
        }
    }
}
