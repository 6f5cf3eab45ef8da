//! The self-test with the real programs, and with programs that cannot join or do not limit joined bytes.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::AsFd;
use std::time::Instant;

use sluice_ebpf::Counter;
use sluice_kernel::program::Limits;
use sluice_kernel::selftest::{self, Failure};

use crate::support::{Rig, wait_for};

#[track_caller]
fn fails(mut rig: Rig, check: &str, found: &str) {
    let failure = rig.self_test().expect_err("a fault is found");
    assert_eq!(failure.check, check, "{failure}; counted: {}", rig.counts());
    assert!(failure.found.contains(found), "{failure}");
}

#[test]
#[ignore = "needs root and BPF"]
fn the_self_test_passes_and_leaves_no_connection() {
    let mut rig = Rig::new();
    rig.self_test().unwrap();
    let pairs = rig.count(Counter::PairsJoined);
    // Twice as many if ::1 is available.
    let families = if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() { 2 } else { 1 };
    assert_eq!(pairs % families, 0, "{}", rig.counts());
    assert!(pairs >= 12 * families, "{}", rig.counts());
    let joined = rig.count(Counter::MessagesJoined);
    assert!(joined >= 500 * families && rig.count(Counter::BytesPassed) > 0, "{}", rig.counts());
    assert_eq!(rig.count(Counter::EndsRefused), 0, "{}", rig.counts());
    wait_for("all pairs closed", || rig.count(Counter::PairsClosed) == pairs);
}

#[test]
#[ignore = "needs root and BPF"]
fn the_self_test_passes_again_and_with_other_connections() {
    let mut rig = Rig::new();
    let _pair = rig.loopback();
    for _ in 0..3 {
        rig.self_test().unwrap();
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn the_self_test_passes_with_all_sensible_budgets() {
    for (budget_bytes, budget_messages) in [(1, 1), (100, 2), (4096, 8), (1 << 20, 16), (65_536, 10_000)] {
        let mut rig = Rig::with(Limits { budget_bytes, budget_messages, ..Limits::default() });
        if let Err(failure) = rig.self_test() {
            panic!("{budget_bytes} bytes, {budget_messages} messages: {failure}; {}", rig.counts());
        }
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn programs_that_no_longer_join_fail_the_self_test() {
    let mut rig = Rig::new();
    rig.bypass.stop_joining().unwrap();
    fails(rig, "join", "");
}

#[test]
#[ignore = "needs root and BPF"]
fn a_budget_of_zero_fails_the_self_test() {
    let bytes = Limits { budget_bytes: 0, ..Limits::default() };
    fails(Rig::with(bytes), "join", "0 of 2 messages bypassed TCP");
    let messages = Limits { budget_messages: 0, ..Limits::default() };
    fails(Rig::with(messages), "join", "0 of 2 messages bypassed TCP");
}

#[test]
#[ignore = "needs root and BPF"]
fn full_maps_fail_the_self_test() {
    let mut rig = Rig::with(Limits { ends_max: 2, ..Limits::default() });
    let _pair = rig.loopback();
    fails(rig, "join", "were not joined");
}

/// The state without the rule.
#[test]
#[ignore = "needs root and BPF"]
fn a_missing_budget_fails_the_self_test() {
    let limits = Limits { budget_bytes: u32::MAX, budget_messages: u32::MAX, ..Limits::default() };
    fails(Rig::with(limits), "slow_reader", "bytes were accepted with nothing read");
}

fn with_slots(slots_max: u32) -> Rig {
    Rig::with(Limits { slots_max, direct_clients_max: 4, ..Limits::default() })
}

fn direct(rig: &Rig) -> Result<(), Failure> {
    selftest::run_direct(&rig.bypass, &mut rig.bypass.marker().unwrap())
}

#[test]
#[ignore = "needs root and BPF"]
fn direct_return_passes_repeatedly_with_a_slot() {
    let mut rig = with_slots(1);
    rig.self_test().unwrap();
    for _ in 0..3 {
        let began = Instant::now();
        direct(&rig).unwrap_or_else(|failure| panic!("{failure}; counted: {}", rig.counts()));
        selftest::run_adding(&rig.bypass, &mut rig.bypass.marker().unwrap())
            .unwrap_or_else(|failure| panic!("{failure}; counted: {}", rig.counts()));
        eprintln!("the self-test of direct return took {} ms", began.elapsed().as_millis());
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn direct_return_is_not_tried_without_slots() {
    assert_eq!(direct(&Rig::new()), Ok(()));
}

#[test]
#[ignore = "needs root and BPF"]
fn direct_return_fails_alone_without_its_maps() {
    let mut rig = with_slots(1);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let _lease = rig.bypass.slots().unwrap().lease(listener.as_fd()).unwrap();
    let failure = direct(&rig).unwrap_err();
    assert_eq!((failure.check, failure.found.as_str()), ("direct_return.connect", "no slot is available"));
    rig.self_test().unwrap();
}
