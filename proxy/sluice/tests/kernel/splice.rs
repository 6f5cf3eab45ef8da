//! The splice program in isolation: joined pairs of sockets that no one else reads or closes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

use sluice_ebpf::splice::Passed;
use sluice_kernel::splice::{Handle, Limits, Splice};

use crate::support::wait_for;

/// A client, the two sockets of a tunnel, and a server.
struct Chain {
    client: TcpStream,
    downstream: TcpStream,
    upstream: TcpStream,
    server: TcpStream,
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn chain() -> Chain {
    let (client, downstream) = connection();
    let (upstream, server) = connection();
    Chain { client, downstream, upstream, server }
}

impl Chain {
    fn join(&self, handle: &mut Handle) -> [u64; 2] {
        handle.join([self.downstream.as_fd(), self.upstream.as_fd()]).unwrap()
    }
}

/// Sends one message at a time, each after the previous one has arrived.
fn lockstep(mut from: &TcpStream, mut to: &TcpStream, messages: u32, seed: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut total = 0;
    for _ in 0..messages {
        let size = random.usize(1..=30_000);
        let sent = pattern(size, random.u64(..));
        from.write_all(&sent).unwrap();
        let mut got = vec![0; size];
        to.read_exact(&mut got).unwrap();
        assert!(got == sent, "seed {seed}: not what was sent");
        total += size as u64;
    }
    total
}

fn pattern(total: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; total];
    random.fill(&mut bytes);
    bytes
}

#[test]
#[ignore = "needs root and BPF"]
fn a_joined_pair_carries_both_directions_at_once() {
    let splice = Splice::load(Limits::default()).unwrap();
    let mut handle = splice.handle().unwrap();
    for round in 0..20 {
        let chain = chain();
        let [up, down] = chain.join(&mut handle);
        let (sent_up, sent_down) = thread::scope(|scope| {
            let sent_up = scope.spawn(|| lockstep(&chain.client, &chain.server, 100, round));
            let sent_down = scope.spawn(|| lockstep(&chain.server, &chain.client, 100, !round));
            (sent_up.join().unwrap(), sent_down.join().unwrap())
        });
        let (up_ledger, down_ledger) = (handle.ledger(up).unwrap(), handle.ledger(down).unwrap());
        assert_eq!((up_ledger.redirected, up_ledger.passed), (sent_up, 0));
        assert_eq!((down_ledger.redirected, down_ledger.passed), (sent_down, 0));
        handle.leave([up, down]);
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn bytes_waiting_for_a_slow_reader_are_limited() {
    let limits = Limits { budget_bytes: 200_000, ..Limits::default() };
    let mut splice = Splice::load(limits).unwrap();
    let mut bells = splice.take_bells().unwrap();
    let mut handle = splice.handle().unwrap();
    let mut chain = chain();
    let [up, down] = chain.join(&mut handle);
    chain.client.set_nonblocking(true).unwrap();
    let block = [7; 50_000];
    let mut sent = 0;
    wait_for("the budget is spent", || {
        while let Ok(count) = chain.client.write(&block) {
            sent += count as u64;
        }
        handle.ledger(up).unwrap().passed > 0
    });
    assert_eq!(bells.wait().unwrap(), up);
    wait_for("all is in the ledger or in the window", || {
        while let Ok(count) = chain.client.write(&block) {
            sent += count as u64;
        }
        let ledger = handle.ledger(up).unwrap();
        assert_eq!(ledger.why, Passed::Budget as u32);
        sent - ledger.redirected > 100_000
    });
    // The tail is in the tunnel's own queue, after the redirected bytes.
    let ledger = handle.ledger(up).unwrap();
    let mut head = vec![0; ledger.redirected as usize];
    chain.server.read_exact(&mut head).unwrap();
    chain.downstream.read_exact(&mut vec![0; ledger.passed as usize]).unwrap();
    handle.leave([up, down]);
}
