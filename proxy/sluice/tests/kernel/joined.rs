//! Bytes through a joined pair arrive completely and in order, whichever path each message took.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use sluice_ebpf::Counter;
use sluice_kernel::program::Limits;

use crate::support::{Pair, Rig, dual_stack, is_alone, receive_all, send_random, wait_for};

const MESSAGES: u32 = 10_000;

/// Both directions at once, each written and read by its own thread.
pub(crate) fn exchange(pair: &Pair, messages: u32, largest: usize, seed: u64) -> u64 {
    let Pair { active, passive } = pair;
    thread::scope(|scope| {
        let up = scope.spawn(|| send_random(active, messages, largest, seed));
        let down = scope.spawn(|| send_random(passive, messages, largest, seed + 1));
        let at_passive = scope.spawn(|| receive_all(passive, seed + 2));
        let at_active = scope.spawn(|| receive_all(active, seed + 3));
        let (up, down) = (up.join().unwrap(), down.join().unwrap());
        assert_eq!(at_passive.join().unwrap(), up, "towards the passive end, seed {seed}");
        assert_eq!(at_active.join().unwrap(), down, "towards the active end, seed {seed}");
        up.0 + down.0
    })
}

fn check(rig: &mut Rig, listener: &TcpListener, address: SocketAddr) {
    let pair = rig.pair(listener, address);
    let total = exchange(&pair, MESSAGES, 60_000, fastrand::u64(..));
    let carried = rig.count(Counter::BytesJoined) + rig.count(Counter::BytesPassed);
    assert_eq!(carried, total, "every byte is counted once: {}", rig.counts());
    assert!(rig.count(Counter::MessagesJoined) > 0, "{}", rig.counts());
}

#[test]
#[ignore = "needs root and BPF"]
fn ten_thousand_messages_over_ipv4() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    check(&mut Rig::new(), &listener, listener.local_addr().unwrap());
}

#[test]
#[ignore = "needs root and BPF"]
fn ten_thousand_messages_over_ipv6() {
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    check(&mut Rig::new(), &listener, listener.local_addr().unwrap());
}

#[test]
#[ignore = "needs root and BPF"]
fn ten_thousand_messages_from_ipv4_to_a_dual_stack_listener() {
    let (listener, address) = dual_stack();
    check(&mut Rig::new(), &listener, address);
}

/// The paths alternate constantly, which puts the order at risk.
#[test]
#[ignore = "needs root and BPF"]
fn order_is_kept_while_a_small_budget_overflows() {
    let mut rig = Rig::with(Limits { budget_bytes: 3000, budget_messages: 4, ..Limits::default() });
    for round in 0..20 {
        let pair = rig.loopback();
        exchange(&pair, 2000, 8000, round);
    }
    let overflows = rig.count(Counter::ByteBudget) + rig.count(Counter::MessageBudget);
    assert!(overflows > 0 && rig.count(Counter::MessagesJoined) > 0, "{}", rig.counts());
}

/// The direction from the application changes its path; the other one does not.
#[test]
#[ignore = "needs root and BPF"]
fn order_is_kept_when_joining_ends_within_a_stream() {
    let mut rig = Rig::new();
    let Pair { mut active, mut passive } = rig.loopback();
    for (from, passed) in [(&mut passive, 1), (&mut active, 1)] {
        from.write_all(b"joined ").unwrap();
        rig.bypass.stop_joining().unwrap();
        from.write_all(b"and passed").unwrap();
        assert_eq!(rig.count(Counter::Stopped), passed, "{}", rig.counts());
        from.shutdown(Shutdown::Write).unwrap();
    }
    assert_eq!(rig.count(Counter::MessagesJoined), 3, "{}", rig.counts());
    for to in [&mut active, &mut passive] {
        let mut text = String::new();
        to.read_to_string(&mut text).unwrap();
        assert_eq!(text, "joined and passed");
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert!(!rig.joins(&listener), "a new connection is not joined");
}

/// Joined unread messages, and then the close: nothing is lost.
#[test]
#[ignore = "needs root and BPF"]
fn a_close_right_after_data_loses_no_bytes() {
    let mut rig = Rig::new();
    for _ in 0..500 {
        let Pair { mut active, mut passive } = rig.loopback();
        active.write_all(b"last ").unwrap();
        active.write_all(b"words").unwrap();
        drop(active);
        let mut text = String::new();
        passive.read_to_string(&mut text).unwrap();
        assert_eq!(text, "last words");
    }
    assert_eq!(rig.count(Counter::MessagesJoined), 1000, "{}", rig.counts());
    wait_for("all pairs closed", || rig.count(Counter::PairsClosed) == 500);
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn joins_and_leaves_are_logged_at_debug_level() {
    // A thread without a subscriber that reaches a log statement first turns it off for all threads.
    if !is_alone("joined::joins_and_leaves_are_logged_at_debug_level") {
        return;
    }
    let sink = Sink::default();
    let writer = sink.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let mut rig = Rig::new();
        let mut log = rig.bypass.take_log().expect("the level requires a log");
        let pair = rig.loopback();
        let port = pair.passive.local_addr().unwrap().port();
        drop(pair);
        let text = || String::from_utf8_lossy(&sink.0.lock().unwrap()).into_owned();
        for what in ["joined", "left"] {
            wait_for(what, || {
                log.flush();
                text().lines().any(|line| line.contains(what) && line.contains(&port.to_string()))
            });
        }
        assert!(text().contains("sluice::ebpf"), "{}", text());
    });
}
