//! Pairs of sockets, joined or not, and the programs' counters.

use std::hash::Hasher;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::thread;
use std::time::Duration;

use sluice_ebpf::{Counter, Wish};
use sluice_kernel::program::{Bypass, Limits, Marker, cgroup2};
use sluice_kernel::selftest;
use socket2::{Domain, Protocol, Socket, Type};
use twox_hash::XxHash64;

/// How often a condition is checked before the test fails.
const TRIES: u32 = 12_000;
const POLL: Duration = Duration::from_millis(5);

/// Polls until `done` returns true.
#[track_caller]
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..TRIES {
        if done() {
            return;
        }
        thread::sleep(POLL);
    }
    panic!("timed out waiting for: {what}");
}

/// The variable that marks a test process as started by another test.
pub(crate) const CHILD: &str = "SLUICE_KERNEL_OWNER";

/// Runs the named test again in a separate process, unless this is that process: then it returns `true`.
///
/// For tests that examine what all threads of a process share: its descriptors, or which log statements are enabled.
pub(crate) fn is_alone(test: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--ignored", "--exact", "--nocapture", test]).env(CHILD, "1");
    // Captured, so that its result is not taken for ours.
    let ended = alone.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    false
}

/// The loaded programs, and the means to mark sockets for them.
pub(crate) struct Rig {
    pub(crate) bypass: Bypass,
    marker: Marker,
}

/// The two ends of a connection.
pub(crate) struct Pair {
    pub(crate) active: TcpStream,
    pub(crate) passive: TcpStream,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(Limits::default())
    }

    pub(crate) fn with(limits: Limits) -> Self {
        let bypass = Bypass::load(limits, &cgroup2().unwrap()).unwrap();
        let marker = bypass.marker().unwrap();
        Self { bypass, marker }
    }

    /// A marked connection to `address`.
    pub(crate) fn connect(&mut self, address: SocketAddr) -> TcpStream {
        self.connect_wishing(address, Wish::SameNamespace)
    }

    /// The same with a wish.
    pub(crate) fn connect_wishing(&mut self, address: SocketAddr, wish: Wish) -> TcpStream {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).unwrap();
        self.mark(socket.as_fd(), wish);
        socket.connect(&address.into()).unwrap();
        socket.into()
    }

    /// Requests joining for a socket that is not connected yet.
    pub(crate) fn mark(&mut self, socket: BorrowedFd<'_>, wish: Wish) {
        self.marker.mark(socket, wish, 0).unwrap();
    }

    pub(crate) fn is_joined(&self, socket: &TcpStream) -> bool {
        self.bypass.is_joined(socket.as_fd()).unwrap()
    }

    /// A joined connection through `listener` to `address`.
    pub(crate) fn pair(&mut self, listener: &TcpListener, address: SocketAddr) -> Pair {
        let active = self.connect(address);
        let pair = Pair { active, passive: listener.accept().unwrap().0 };
        wait_for("both ends joined", || self.is_joined(&pair.active) && self.is_joined(&pair.passive));
        pair
    }

    /// Whether a marked connection through `listener` is joined once both ends exist.
    pub(crate) fn joins(&mut self, listener: &TcpListener) -> bool {
        let active = self.connect(listener.local_addr().unwrap());
        listener.accept().unwrap();
        self.is_joined(&active)
    }

    /// What the other end has unread, in the way sluice queries it.
    pub(crate) fn unread_of(&self, active: &TcpStream) -> u32 {
        self.marker.unread(active.as_fd()).unwrap()
    }

    /// The same for a pair.
    pub(crate) fn unread(&self, pair: &Pair) -> u32 {
        self.unread_of(&pair.active)
    }

    /// The result of the self-test.
    pub(crate) fn self_test(&mut self) -> Result<(), selftest::Failure> {
        selftest::run(&self.bypass, &mut self.marker)
    }

    /// A joined connection on 127.0.0.1.
    pub(crate) fn loopback(&mut self) -> Pair {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        self.pair(&listener, listener.local_addr().unwrap())
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.bypass.counters().unwrap()[counter as usize]
    }

    /// Every counter with its name, for assertion messages.
    pub(crate) fn counts(&self) -> String {
        let counters = self.bypass.counters().unwrap();
        let named = Counter::ALL.iter().zip(counters).filter(|(_, count)| *count > 0);
        named.map(|(counter, count)| format!("{} {count}", counter.name())).collect::<Vec<_>>().join(", ")
    }
}

/// A listener for both IPv4 and IPv6, and its IPv4 address.
pub(crate) fn dual_stack() -> (TcpListener, SocketAddr) {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_only_v6(false).unwrap();
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into()).unwrap();
    socket.listen(16).unwrap();
    let listener = TcpListener::from(socket);
    let port = listener.local_addr().unwrap().port();
    (listener, (Ipv4Addr::LOCALHOST, port).into())
}

/// Writes `messages` of random sizes, then shuts down; returns bytes and hash.
pub(crate) fn send_random(mut to: &TcpStream, messages: u32, largest: usize, seed: u64) -> (u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut hash, mut total) = (XxHash64::with_seed(0), 0);
    let mut buffer = vec![0; largest];
    for _ in 0..messages {
        let size = if random.u32(..20) == 0 { random.usize(1..=largest) } else { random.usize(1..=1500) };
        random.fill(&mut buffer[..size]);
        to.write_all(&buffer[..size]).unwrap();
        hash.write(&buffer[..size]);
        total += size as u64;
    }
    to.shutdown(Shutdown::Write).unwrap();
    (total, hash.finish())
}

/// Reads to the end, in pieces of random sizes; returns bytes and hash.
pub(crate) fn receive_all(mut from: &TcpStream, seed: u64) -> (u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut hash, mut total) = (XxHash64::with_seed(0), 0);
    let mut buffer = vec![0; 70_000];
    loop {
        let wanted = random.usize(1..=buffer.len());
        let got = match from.read(&mut buffer[..wanted]) {
            Ok(got) => got,
            // A blocking read of a socket in a sockmap returns this when it is woken for something else: here for room
            // to write, which another thread waits for on the same socket (seen on Linux 6.18).
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => panic!("{error}"),
        };
        if got == 0 {
            return (total, hash.finish());
        }
        hash.write(&buffer[..got]);
        total += got as u64;
    }
}
