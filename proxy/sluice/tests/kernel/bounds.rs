//! The cost of a reader that does not read: the budget, and then TCP's own window.

use std::io::{ErrorKind, Read, Write};
use std::thread;

use sluice_ebpf::Counter;
use sluice_kernel::program::Limits;

use crate::support::{Pair, Rig};

/// Writes until no more is accepted; returns how many bytes were.
fn fill(pair: &mut Pair, message: &[u8]) -> usize {
    pair.active.set_nonblocking(true).unwrap();
    let mut taken = 0;
    loop {
        // Continues a message that was cut off.
        match pair.active.write(&message[taken % message.len()..]) {
            Ok(length) => taken += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return taken,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The received bytes are the pattern, repeated.
fn drain(pair: &mut Pair, taken: usize, pattern: &[u8]) {
    let mut received = vec![0; taken];
    pair.passive.read_exact(&mut received).unwrap();
    let expected = pattern.iter().cycle();
    assert!(received.iter().zip(expected).all(|(got, sent)| got == sent), "out of order");
}

#[test]
#[ignore = "needs root and BPF"]
fn unread_bytes_stay_within_the_budget() {
    let mut rig = Rig::with(Limits { budget_bytes: 20_000, ..Limits::default() });
    let mut pair = rig.loopback();
    let message: Vec<u8> = (0..=250).cycle().take(1000).collect();
    let taken = fill(&mut pair, &message);
    assert_eq!(rig.count(Counter::BytesJoined), 20_000, "{}", rig.counts());
    assert!(rig.count(Counter::ByteBudget) > 0, "{}", rig.counts());
    drain(&mut pair, taken, &message);
}

#[test]
#[ignore = "needs root and BPF"]
fn unread_messages_stay_within_the_budget() {
    let mut rig = Rig::with(Limits { budget_messages: 10, ..Limits::default() });
    let mut pair = rig.loopback();
    let taken = fill(&mut pair, b"x");
    assert_eq!(rig.count(Counter::MessagesJoined), 10, "{}", rig.counts());
    assert!(rig.count(Counter::MessageBudget) > 0, "{}", rig.counts());
    drain(&mut pair, taken, b"x");
}

/// Towards sluice, joining resumes when everything is read; towards an application it does not.
#[test]
#[ignore = "needs root and BPF"]
fn only_the_direction_to_sluice_resumes_joining() {
    let mut rig = Rig::with(Limits { budget_bytes: 100, ..Limits::default() });
    let Pair { mut active, mut passive } = rig.loopback();
    let mut buffer = [0; 200];
    for (mut from, mut to, back) in [(&active, &passive, false), (&passive, &active, true)] {
        from.write_all(&[1; 200]).unwrap();
        to.read_exact(&mut buffer).unwrap();
        let before = rig.count(Counter::MessagesJoined);
        from.write_all(&[2; 50]).unwrap();
        to.read_exact(&mut buffer[..50]).unwrap();
        assert_eq!(rig.count(Counter::MessagesJoined) - before, u64::from(back), "{}", rig.counts());
    }
    assert_eq!(rig.count(Counter::AfterTcp), 1, "{}", rig.counts());
    // No call in here waits for the other end.
    active.write_all(b"a").unwrap();
    passive.write_all(b"b").unwrap();
}

/// Two hundred of them: the kernel's memory for their sockets stays within budget times connections.
#[test]
#[ignore = "needs root and BPF"]
fn many_slow_readers_cost_at_most_their_budgets() {
    let limits = Limits { budget_bytes: 8000, budget_messages: 16, ..Limits::default() };
    let mut rig = Rig::with(limits);
    let mut pairs: Vec<Pair> = (0..200).map(|_| rig.loopback()).collect();
    thread::scope(|scope| {
        for pair in &mut pairs {
            scope.spawn(|| {
                for _ in 0..100 {
                    pair.active.write_all(&[0; 100]).unwrap();
                }
            });
        }
    });
    // 16 messages of 100 bytes each; the rest uses TCP.
    assert_eq!(rig.count(Counter::BytesJoined), 200 * 16 * 100, "{}", rig.counts());
    for pair in &mut pairs {
        let mut received = [1; 10_000];
        pair.passive.read_exact(&mut received).unwrap();
        assert!(received.iter().all(|byte| *byte == 0));
    }
}
