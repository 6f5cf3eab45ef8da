//! Operations from their start to their end, on real rings.
#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use io_uring::opcode;

use super::*;
use crate::ring;

struct Nothing(#[expect(dead_code, reason = "held")] Rc<()>);

impl Finished for Nothing {
    type Output = i32;

    fn finish(self, cqe: cqueue::Entry) -> i32 {
        cqe.result()
    }
}

fn on_a_ring<F: Future<Output = ()>>(future: F) {
    if let Err(error) = ring::run(future) {
        eprintln!("skipped: no ring: {error}");
    }
}

/// Six times the submission queue, and more than the queue of completions holds.
#[test]
fn more_operations_than_the_queues_have_room_for_all_end() {
    on_a_ring(async {
        let held = Rc::new(());
        let all: Vec<_> =
            (0..6144).map(|_| submit(Nothing(Rc::clone(&held)), opcode::Nop::new().build())).collect();
        for one in all {
            assert_eq!(one.await, 0);
        }
        assert_eq!(Rc::strong_count(&held), 1);
    });
}

#[test]
fn a_dropped_operation_keeps_what_it_owns_until_it_has_ended() {
    on_a_ring(async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs): (Fd, Fd) = (Rc::new(OwnedFd::from(ours)), Rc::new(OwnedFd::from(theirs)));
        let waiting = ring::recv(&ours, Vec::with_capacity(8), true);
        drop(waiting);
        tokio::task::yield_now().await;
        assert_eq!(Rc::strong_count(&ours), 2, "the kernel may write to its buffer");
        let (sent, _) = ring::send(&theirs, b"late".to_vec(), 0, true).await;
        assert_eq!(sent.unwrap(), 4);
        while Rc::strong_count(&ours) > 1 {
            tokio::task::yield_now().await;
        }
        let waiting = ring::recv(&ours, Vec::with_capacity(8), true);
        drop(waiting);
        ring::cancel(&ours);
        while Rc::strong_count(&ours) > 1 {
            tokio::task::yield_now().await;
        }
    });
}

/// Completed by a thread of the kernel's while this one sleeps.
#[test]
fn what_ends_elsewhere_wakes_the_thread() {
    on_a_ring(async {
        for _ in 0..100 {
            let held = Rc::new(());
            let entry = opcode::Nop::new().build().flags(squeue::Flags::ASYNC);
            assert_eq!(submit(Nothing(Rc::clone(&held)), entry).await, 0);
        }
    });
}
