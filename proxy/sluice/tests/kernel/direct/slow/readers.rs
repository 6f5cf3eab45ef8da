//! Clients that read a kilobyte a second, and then all at once.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::proxy_support::{PATIENCE, Wire};

const RECEIVE_BUFFER: usize = 4096;
const BUFFER_AFTERWARDS: usize = 1 << 20;
/// A kilobyte a second.
const TICK: Duration = Duration::from_millis(100);
const BYTES_A_TICK: usize = 100;

/// A client in the middle of its response.
pub(super) struct Reader<'a> {
    stream: TcpStream,
    /// The received part of an incomplete head.
    head: Vec<u8>,
    /// The expected body.
    wanted: &'a [u8],
    /// Bytes of it received so far.
    got: usize,
}

fn get(size: usize, host: &str) -> String {
    format!("GET /{size} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

impl<'a> Reader<'a> {
    /// Has received one small response, and requests one with this body.
    pub(super) fn ask(address: SocketAddr, host: &str, wanted: &'a [u8]) -> Self {
        Self::ask_into(RECEIVE_BUFFER, address, host, wanted)
    }

    /// The same with a receive buffer of that size.
    pub(super) fn ask_into(buffer: usize, address: SocketAddr, host: &str, wanted: &'a [u8]) -> Self {
        let mut reader = Self::meet(buffer, address, host, wanted);
        reader.begin(host);
        reader
    }

    /// Has received one small response, and has not yet sent the second request.
    pub(super) fn meet(buffer: usize, address: SocketAddr, host: &str, wanted: &'a [u8]) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.set_recv_buffer_size(buffer).unwrap();
        socket.connect(&address.into()).unwrap();
        let stream = TcpStream::from(socket);
        let small = Wire::from(stream.try_clone().unwrap()).ask(get(10, host));
        assert_eq!(small.body.len(), 10, "{small:?}");
        Self { stream, head: Vec::new(), wanted, got: 0 }
    }

    pub(super) fn begin(&mut self, host: &str) {
        Wire::from(self.stream.try_clone().unwrap()).send(get(self.wanted.len(), host));
        self.stream.set_nonblocking(true).unwrap();
    }

    fn is_done(&self) -> bool {
        self.got == self.wanted.len()
    }

    fn read(&mut self, most: usize) {
        let mut room = [0; 65_536];
        match self.stream.read(&mut room[..most]) {
            Ok(0) => panic!("ended after {} of {} bytes", self.got, self.wanted.len()),
            Ok(count) => self.take(&room[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error} after {} of {} bytes", self.got, self.wanted.len()),
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.got > 0 {
            return self.check(bytes);
        }
        self.head.extend_from_slice(bytes);
        if let Some(at) = self.head.windows(4).position(|window| window == b"\r\n\r\n") {
            assert!(self.head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&self.head));
            let body = self.head.split_off(at + 4);
            self.check(&body);
        }
    }

    /// Compares every byte, which shows more than a hash.
    fn check(&mut self, bytes: &[u8]) {
        let (from, to) = (self.got, self.got + bytes.len());
        assert!(
            self.wanted.get(from..to) == Some(bytes),
            "wrong between {from} and {to} of {}",
            self.wanted.len()
        );
        self.got = to;
    }
}

/// Reads from all of them for a while, a little at a time.
pub(super) fn read_slowly(readers: &mut [Reader<'_>], ticks: u32) {
    for _ in 0..ticks {
        readers.iter_mut().for_each(|reader| reader.read(BYTES_A_TICK));
        thread::sleep(TICK);
    }
}

/// Reads the rest from all of them.
pub(super) fn read_on(readers: &mut [Reader<'_>]) {
    for reader in &*readers {
        SockRef::from(&reader.stream).set_recv_buffer_size(BUFFER_AFTERWARDS).unwrap();
    }
    let mut moved = Instant::now();
    while readers.iter().any(|reader| !reader.is_done()) {
        let before: usize = readers.iter().map(|reader| reader.got).sum();
        let waiting = readers.iter().filter(|reader| !reader.is_done());
        let mut polled: Vec<_> =
            waiting.map(|reader| PollFd::new(reader.stream.as_fd(), PollFlags::POLLIN)).collect();
        poll(&mut polled, PollTimeout::from(1000_u16)).unwrap();
        readers.iter_mut().filter(|reader| !reader.is_done()).for_each(|reader| reader.read(65_536));
        if readers.iter().map(|reader| reader.got).sum::<usize>() > before {
            moved = Instant::now();
        }
        assert!(moved.elapsed() < PATIENCE, "stuck: {}", stuck(readers));
    }
}

fn stuck(readers: &[Reader<'_>]) -> String {
    let waiting = readers.iter().filter(|reader| !reader.is_done());
    waiting.map(|reader| format!("{} of {}", reader.got, reader.wanted.len())).collect::<Vec<_>>().join(", ")
}

/// Small requests one after the other on one connection until `done`; returns the number of responses.
pub(super) fn ask_meanwhile(address: SocketAddr, host: &str, done: impl Fn() -> bool) -> u64 {
    let (mut wire, mut count) = (Wire::connect(address), 0);
    while !done() {
        assert_eq!(wire.ask(get(2000, host)).body.len(), 2000);
        count += 1;
        // A client that uses a whole core would distort the figures.
        thread::sleep(Duration::from_millis(5));
    }
    count
}
