//! The client of one case: it has its own address, writes, shuts down its side, and reads to the end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn};

use super::grammar::Case;
use super::server::receive;

/// Longer than any time limit of sluice that applies to a case.
const PATIENCE: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 16 * 1024;
/// More than the response to any case.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Closed,
    Reset,
    /// Not at all, within our time limit.
    Silent,
}

/// The received bytes.
pub(super) struct Heard {
    pub(super) bytes: Vec<u8>,
    pub(super) end: End,
}

/// The address of a case: X-Forwarded-For then tells the origin which case a request belongs to.
pub(super) fn address(index: u64) -> Ipv4Addr {
    let [.., high, middle, low] = index.to_be_bytes();
    Ipv4Addr::new(127, 64 + high % 128, middle, low)
}

/// The case of an address.
pub(super) fn index(address: Ipv4Addr) -> u64 {
    let [_, high, middle, low] = address.octets();
    u64::from_be_bytes([0, 0, 0, 0, 0, high.wrapping_sub(64), middle, low])
}

/// A connection from one address to another.
///
/// # Errors
/// When the address cannot be bound or connected to.
fn connect(from: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    let SocketAddr::V4(to) = to else { bail!("{to} is not an IPv4 address") };
    let fd = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    socket::bind(fd.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(from, 0)))
        .with_context(|| format!("bind {from}"))?;
    socket::connect(fd.as_raw_fd(), &SockaddrIn::from(to)).with_context(|| format!("connect {to}"))?;
    let stream = TcpStream::from(fd);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a case and returns everything received.
///
/// # Errors
/// When the connection cannot be made.
pub(super) fn run(from: Ipv4Addr, to: SocketAddr, case: &Case) -> Result<Heard> {
    let mut stream = connect(from, to)?;
    let mut written = true;
    for write in case.writes() {
        // A peer that has refused the case and closed needs no more of it.
        written = stream.write_all(write).is_ok();
        if !written {
            break;
        }
        std::thread::yield_now();
    }
    Ok(hear(stream, Vec::new(), written))
}

/// Sends two requests, the second one at once or after the first response bytes, and returns everything received.
///
/// # Errors
/// When the connection cannot be made.
pub(super) fn converse(
    from: Ipv4Addr,
    to: SocketAddr,
    requests: &[Vec<u8>; 2],
    pipelined: bool,
) -> Result<Heard> {
    let mut stream = connect(from, to)?;
    let mut bytes = Vec::new();
    let [first, second] = requests;
    let mut written = stream.write_all(first).is_ok();
    // A peer that has closed needs no more.
    let goes_on = pipelined || receive(&mut stream, &mut bytes);
    if written && goes_on {
        written = stream.write_all(second).is_ok();
    }
    Ok(hear(stream, bytes, written))
}

/// Shuts down our side, and reads to the end of the other. If a write has failed, the kernel reported the reset there
/// and not to the read.
fn hear(mut stream: TcpStream, mut bytes: Vec<u8>, written: bool) -> Heard {
    let _ = stream.shutdown(Shutdown::Write);
    let end = match read_to_end(&mut stream, &mut bytes) {
        End::Closed if !written => End::Reset,
        end => end,
    };
    Heard { bytes, end }
}

/// Appends everything up to the end of the stream, and returns how it ended.
fn read_to_end(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> End {
    let mut buffer = [0; READ_BYTES];
    while bytes.len() < ANSWER_BYTES_MAX {
        match stream.read(&mut buffer) {
            Ok(0) => return End::Closed,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return End::Silent;
            }
            Err(_) => return End::Reset,
        }
    }
    End::Silent
}
