//! Clients that read a kilobyte a second, and then all at once.

use std::hash::Hasher;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use twox_hash::XxHash64;

use crate::proxy_support::{PATIENCE, Wire};

const RECEIVE_BUFFER: usize = 4096;
const BUFFER_AFTERWARDS: usize = 1 << 20;
/// A kilobyte a second.
const TICK: Duration = Duration::from_millis(100);
const BYTES_A_TICK: usize = 100;

/// One client in the middle of its answer.
pub(super) struct Reader {
    stream: TcpStream,
    /// What has come of the head; empty once it is whole.
    head: Vec<u8>,
    size: usize,
    got: usize,
    hash: XxHash64,
}

fn get(size: usize, host: &str) -> String {
    format!("GET /{size} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

impl Reader {
    /// Has had one small answer, and asks for one of `size`.
    pub(super) fn ask(address: SocketAddr, host: &str, size: usize) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
        socket.connect(&address.into()).unwrap();
        let stream = TcpStream::from(socket);
        let mut wire = Wire::from(stream.try_clone().unwrap());
        assert_eq!(wire.ask(get(10, host)).body.len(), 10);
        wire.send(get(size, host));
        stream.set_nonblocking(true).unwrap();
        Self { stream, head: Vec::new(), size, got: 0, hash: XxHash64::with_seed(0) }
    }

    fn is_done(&self) -> bool {
        self.got == self.size
    }

    fn read(&mut self, most: usize) {
        let mut room = vec![0; most];
        match self.stream.read(&mut room) {
            Ok(0) => panic!("ended after {} of {} bytes", self.got, self.size),
            Ok(count) => self.take(&room[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error} after {} of {} bytes", self.got, self.size),
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.got > 0 {
            self.got += bytes.len();
            self.hash.write(bytes);
            return;
        }
        self.head.extend_from_slice(bytes);
        if let Some(at) = self.head.windows(4).position(|window| window == b"\r\n\r\n") {
            assert!(self.head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&self.head));
            let body = &self.head[at + 4..];
            self.got = body.len();
            self.hash.write(body);
        }
    }
}

/// All of them for a while, a little at a time.
pub(super) fn read_slowly(readers: &mut [Reader], ticks: u32) {
    for _ in 0..ticks {
        readers.iter_mut().for_each(|reader| reader.read(BYTES_A_TICK));
        thread::sleep(TICK);
    }
}

/// The rest of all; the hashes of the bodies.
pub(super) fn read_on(readers: &mut [Reader]) -> Vec<u64> {
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
    readers.iter().map(|reader| reader.hash.finish()).collect()
}

fn stuck(readers: &[Reader]) -> String {
    let waiting = readers.iter().filter(|reader| !reader.is_done());
    waiting.map(|reader| format!("{} of {}", reader.got, reader.size)).collect::<Vec<_>>().join(", ")
}

/// Small answers one after the other on one connection until `done`; how many came.
pub(super) fn ask_meanwhile(address: SocketAddr, host: &str, done: impl Fn() -> bool) -> u64 {
    let (mut wire, mut count) = (Wire::connect(address), 0);
    while !done() {
        assert_eq!(wire.ask(get(2000, host)).body.len(), 2000);
        count += 1;
        // A client that takes a core would be what the figures show.
        thread::sleep(Duration::from_millis(5));
    }
    count
}
