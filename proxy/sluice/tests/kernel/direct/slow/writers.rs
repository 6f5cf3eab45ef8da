//! Origins that write like typical servers: edge-triggered, level-triggered, or blocking in a thread.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// How an origin waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Like nginx and Go: writes until it is told to wait, and waits for the next edge.
    Edge,
    /// Like many event loops: polls for room while it has something to write.
    Level,
    /// One blocking thread per connection.
    Blocking,
}

impl Way {
    /// The Host of its clients.
    pub(super) fn host(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Level => "level",
            Self::Blocking => "blocking",
        }
    }
}

/// An origin that runs until the test process ends.
pub(super) struct Writer {
    pub(super) way: Way,
    pub(super) address: SocketAddr,
    /// Name of its threads.
    pub(super) name: String,
    /// How often there was no room.
    pub(super) waits: Arc<AtomicU64>,
}

impl Writer {
    /// Responds to `GET /N` with the first `N` bytes of `content`.
    pub(super) fn start(way: Way, name: String, content: Arc<Vec<u8>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, waits) = (listener.local_addr().unwrap(), Arc::<AtomicU64>::default());
        let counter = Arc::clone(&waits);
        let serve = move || match way {
            Way::Blocking => block(&listener, &content),
            Way::Edge | Way::Level => Loop::new(listener, way, content, counter).run(),
        };
        thread::Builder::new().name(name.clone()).spawn(serve).unwrap();
        Self { way, address, name, waits }
    }
}

/// Threads inherit the name of their creator.
fn block(listener: &TcpListener, content: &Arc<Vec<u8>>) {
    while let Ok((mut stream, _)) = listener.accept() {
        let content = Arc::clone(content);
        let name = thread::current().name().unwrap_or_default().to_owned();
        let serve = move || {
            let mut asked = Vec::new();
            let mut room = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut room) {
                asked.extend_from_slice(&room[..count]);
                while let Some(size) = take_request(&mut asked) {
                    let written =
                        stream.write_all(&head(size)).and_then(|()| stream.write_all(&content[..size]));
                    if written.is_err() {
                        return;
                    }
                }
            }
        };
        thread::Builder::new().name(name).spawn(serve).unwrap();
    }
}

fn head(size: usize) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes()
}

/// The size requested by the next complete request.
fn take_request(asked: &mut Vec<u8>) -> Option<usize> {
    let end = asked.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let rest = asked.split_off(end);
    let head = std::mem::replace(asked, rest);
    String::from_utf8_lossy(&head).split(['/', ' ']).find_map(|word| word.parse().ok())
}

struct Connection {
    stream: TcpStream,
    asked: Vec<u8>,
    head: Vec<u8>,
    /// The part of the content that is not written yet.
    body: std::ops::Range<usize>,
}

/// One thread for all connections.
struct Loop {
    listener: TcpListener,
    way: Way,
    content: Arc<Vec<u8>>,
    waits: Arc<AtomicU64>,
    epoll: Epoll,
    connections: HashMap<RawFd, Connection>,
}

impl Loop {
    fn new(listener: TcpListener, way: Way, content: Arc<Vec<u8>>, waits: Arc<AtomicU64>) -> Self {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        listener.set_nonblocking(true).unwrap();
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, fd(&listener) as u64)).unwrap();
        Self { listener, way, content, waits, epoll, connections: HashMap::new() }
    }

    fn run(mut self) {
        let mut events = vec![EpollEvent::empty(); 64];
        loop {
            let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Ok(count) => count,
                Err(nix::Error::EINTR) => continue,
                Err(error) => panic!("{error}"),
            };
            for event in &events[..count] {
                let number = RawFd::try_from(event.data()).unwrap();
                if number == fd(&self.listener) {
                    self.accept();
                } else if !self.go_on(number) {
                    self.connections.remove(&number);
                }
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true).unwrap();
            stream.set_nodelay(true).unwrap();
            self.epoll.add(&stream, EpollEvent::new(self.interest(false), fd(&stream) as u64)).unwrap();
            let connection = Connection { stream, asked: Vec::new(), head: Vec::new(), body: 0..0 };
            self.connections.insert(fd(&connection.stream), connection);
        }
    }

    fn interest(&self, writing: bool) -> EpollFlags {
        match self.way {
            Way::Edge => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET,
            _ if writing => EpollFlags::EPOLLOUT,
            _ => EpollFlags::EPOLLIN,
        }
    }

    /// Reads and writes as far as possible; false at the connection's end.
    fn go_on(&mut self, number: RawFd) -> bool {
        let Some(connection) = self.connections.get_mut(&number) else { return true };
        let moved = connection.read().and_then(|open| Ok((open, connection.write(&self.content)?)));
        let Ok((open, done)) = moved else { return false };
        if !done {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        if self.way == Way::Level {
            let mut event = EpollEvent::new(self.interest(!done), number as u64);
            let Some(connection) = self.connections.get(&number) else { return true };
            self.epoll.modify(&connection.stream, &mut event).unwrap();
        }
        open
    }
}

fn fd(of: &impl AsFd) -> RawFd {
    of.as_fd().as_raw_fd()
}

impl Connection {
    /// Reads everything available; false at the end.
    fn read(&mut self) -> io::Result<bool> {
        let mut room = [0; 4096];
        loop {
            match self.stream.read(&mut room) {
                Ok(0) => return Ok(false),
                Ok(count) => self.asked.extend_from_slice(&room[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes pending bytes, and the responses to requests received meanwhile; false if there is no more room.
    fn write(&mut self, content: &[u8]) -> io::Result<bool> {
        loop {
            while !self.head.is_empty() || !self.body.is_empty() {
                let from_head = !self.head.is_empty();
                let bytes = if from_head { &self.head } else { &content[self.body.clone()] };
                match self.stream.write(bytes) {
                    Ok(count) if from_head => drop(self.head.drain(..count)),
                    Ok(count) => self.body.start += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            let Some(size) = take_request(&mut self.asked) else { return Ok(true) };
            (self.head, self.body) = (head(size), 0..size);
        }
    }
}
