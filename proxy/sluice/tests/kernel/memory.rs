//! The kernel memory of slow readers: within budget times connections, and released when they close.
//!
//! The figures are those of the whole machine, so other tests affect them; the limits leave room for that.

use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock};

use serde_json::Value;
use sluice_ebpf::{Counter, Wish, names};
use sluice_kernel::program::Limits;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::support::{Pair, Rig, wait_for};

const CONNECTIONS: u64 = 200;
/// Both ends of all connections.
const ENDS: u64 = 2 * CONNECTIONS;
/// What TCP may buffer of overflowing bytes, at either side; the kernel doubles it.
const SOCKET_BUFFER: usize = 16_384;
/// Allowance for other tests that run meanwhile.
const NOISE: u64 = 48 << 20;

/// Locked for writing by tests that exceed this allowance.
pub(crate) static QUIET: RwLock<()> = RwLock::new(());

/// Bytes in TCP buffers.
pub(crate) fn in_buffers() -> u64 {
    let text = fs::read_to_string("/proc/net/sockstat").unwrap();
    let words = text.lines().find_map(|line| line.strip_prefix("TCP: ")).unwrap();
    let pages = words.split(' ').skip_while(|word| *word != "mem").nth(1).unwrap();
    pages.parse::<u64>().unwrap() * 4096
}

/// Bytes of kernel objects in use.
pub(crate) fn in_slab() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("SUnreclaim:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn small_buffers(socket: SockRef<'_>) {
    socket.set_send_buffer_size(SOCKET_BUFFER).unwrap();
    socket.set_recv_buffer_size(SOCKET_BUFFER).unwrap();
}

/// Joined connections whose buffers cannot grow.
fn pairs(rig: &mut Rig) -> Vec<Pair> {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    small_buffers(SockRef::from(&listener));
    listener.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    listener.listen(16).unwrap();
    let listener = TcpListener::from(listener);
    let address = listener.local_addr().unwrap();
    let pair = |_| {
        let active = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        small_buffers(SockRef::from(&active));
        rig.mark(active.as_fd(), Wish::SameNamespace);
        active.connect(&address.into()).unwrap();
        let pair = Pair { active: active.into(), passive: listener.accept().unwrap().0 };
        wait_for("joined", || rig.is_joined(&pair.active) && rig.is_joined(&pair.passive));
        pair
    };
    (0..CONNECTIONS).map(pair).collect()
}

/// Maximum messages written by one end, many times the number that may be joined: with TCP, single bytes take forever.
const MESSAGES_MAX: u32 = 2000;

/// Writes until no more is accepted, or it is enough.
fn fill(mut socket: &TcpStream, message: &[u8]) -> u64 {
    socket.set_nonblocking(true).unwrap();
    let mut taken = 0;
    for _ in 0..MESSAGES_MAX {
        match socket.write(message) {
            Ok(length) => taken += length as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    taken
}

/// Endless messages of this size in both directions, without a reader. The maximum distinguishes the maps from those of
/// other tests.
fn slow_readers(size: usize, ends_max: u32) {
    let _quiet = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    let limits = Limits { ends_max, ..Limits::default() };
    let mut rig = Rig::with(limits);
    let pairs = pairs(&mut rig);
    let (buffers, slab) = (in_buffers(), in_slab());
    let message = vec![7; size];
    let taken: u64 =
        pairs.iter().flat_map(|pair| [&pair.active, &pair.passive]).map(|end| fill(end, &message)).sum();
    assert_eq!(known(ends_max) as u64, ENDS);
    let counts = rig.counts();
    let (joined, messages) = (rig.count(Counter::BytesJoined), rig.count(Counter::MessagesJoined));
    assert!(joined <= ENDS * u64::from(limits.budget_bytes), "{counts}");
    assert!(messages <= ENDS * u64::from(limits.budget_messages), "{counts}");
    assert!(joined > 0 && taken > joined, "the budget is spent: {counts}");
    // Twice, because a partial page may be held as a whole one; and socket buffers count double anyway.
    let by_tcp = ENDS * 2 * 2 * SOCKET_BUFFER as u64;
    let bound = 2 * (ENDS * u64::from(limits.budget_bytes) + by_tcp) + NOISE;
    let grown = in_buffers().saturating_sub(buffers);
    assert!(grown <= bound, "{grown} bytes in buffers, {bound} allowed: {counts}");
    // About 1 KB per joined message, and a good part of that for pieces made by TCP.
    let objects = 2 * (ENDS * 1024 * u64::from(limits.budget_messages) + by_tcp) + NOISE;
    let grown = in_slab().saturating_sub(slab);
    assert!(grown <= objects, "{grown} bytes in slabs, {objects} allowed: {counts}");
    drop(pairs);
    wait_for("all to have left", || rig.count(Counter::PairsClosed) == rig.count(Counter::PairsJoined));
    wait_for("the buffers to be given back", || in_buffers() <= buffers + NOISE / 2);
    wait_for("the objects to be given back", || in_slab() <= slab + NOISE / 2);
    assert_eq!(known(ends_max), 0, "{}", rig.counts());
}

/// The number of known ends in the maps that were loaded with this maximum.
fn known(ends_max: u32) -> usize {
    let bpftool = |words: &[&str]| -> Value {
        let output = Command::new("bpftool").arg("-j").args(words).stdin(Stdio::null()).output();
        serde_json::from_slice(&output.expect("bpftool runs").stdout).unwrap()
    };
    let maps = bpftool(&["map", "list"]);
    let ours = |map: &&Value| map["name"] == names::KNOWN && map["max_entries"] == ends_max;
    let id = maps.as_array().unwrap().iter().find(ours).expect("it is loaded")["id"].to_string();
    bpftool(&["map", "dump", "id", &id]).as_array().unwrap().len()
}

#[test]
#[ignore = "needs root and BPF"]
fn unread_one_byte_messages_are_limited() {
    slow_readers(1, 1111);
}

#[test]
#[ignore = "needs root and BPF"]
fn unread_endless_bodies_are_limited() {
    slow_readers(16_000, 1112);
}
