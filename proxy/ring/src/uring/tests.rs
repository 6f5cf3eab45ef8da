//! Operations from their start to their end, on real rings.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use io_uring::opcode;

use super::*;
use crate as ring;

struct Nothing(#[expect(dead_code, reason = "held")] Rc<()>);

impl Finished for Nothing {
    type Output = i32;

    fn finish(self, result: i32) -> i32 {
        result
    }

    fn lost() -> i32 {
        -libc::ECANCELED
    }
}

fn nothing(held: &Rc<()>, flags: squeue::Flags) -> InFlight<Nothing> {
    // SAFETY: it names no memory and no descriptor.
    unsafe { submit(Nothing(Rc::clone(held)), opcode::Nop::new().build().flags(flags)) }
}

fn on_a_ring<F: Future<Output = ()>>(future: F) {
    if let Err(error) = ring::run(Engine::IoUring, future) {
        eprintln!("skipped: no ring: {error}");
    }
}

fn pair() -> (Fd, Fd) {
    let (one, other) = UnixStream::pair().unwrap();
    (OwnedFd::from(one).into(), OwnedFd::from(other).into())
}

/// Six times the submission queue, and more than the queue of completions holds.
#[test]
fn more_operations_than_the_queues_have_room_for_all_end() {
    on_a_ring(async {
        let held = Rc::new(());
        let all: Vec<_> = (0..6144).map(|_| nothing(&held, squeue::Flags::empty())).collect();
        for one in all {
            assert_eq!(one.await, 0);
        }
        assert_eq!(Rc::strong_count(&held), 1);
        assert_eq!(Driver::current().under_way(), 0);
    });
}

/// Completed by a thread of the kernel's while this one sleeps.
#[test]
fn what_ends_elsewhere_wakes_the_thread() {
    on_a_ring(async {
        for _ in 0..100 {
            assert_eq!(nothing(&Rc::new(()), squeue::Flags::ASYNC).await, 0);
        }
    });
}

/// A future that outlives its ring would take an operation of the next one for its own, were that asked.
#[test]
fn two_rings_on_one_thread_do_not_meet() {
    let (ours, theirs) = pair();
    let left = RefCell::new(None);
    on_a_ring(async {
        left.replace(Some(ring::recv(&ours, Vec::with_capacity(8), true)));
        tokio::task::yield_now().await;
    });
    on_a_ring(async {
        let (mine, other) = pair();
        let receiving = ring::recv(&mine, Vec::with_capacity(8), true);
        let Some(left) = left.take() else { return };
        let before = Driver::current().under_way();
        left.cancel();
        drop(left);
        assert_eq!(Driver::current().under_way(), before);
        ring::send(&other, b"mine".to_vec(), 0, true).await.0.unwrap();
        assert_eq!(receiving.await.1, b"mine");
    });
    drop(theirs);
}

#[test]
fn after_lost_completions_all_that_waits_ends_and_the_ring_goes_on() {
    on_a_ring(async {
        let (ours, theirs) = pair();
        let receiving = tokio::task::spawn_local(ring::recv(&ours, Vec::with_capacity(8), true));
        tokio::task::yield_now().await;
        Driver::current().recover();
        assert_eq!(receiving.await.unwrap().0.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        let (sent, _) = ring::send(&theirs, b"on".to_vec(), 0, true).await;
        assert_eq!(sent.unwrap(), 2);
        assert_eq!(ring::recv(&ours, Vec::with_capacity(8), true).await.1, b"on");
    });
}

/// The kernel takes nothing more while completions that it has no room for wait.
#[test]
fn pushing_never_waits_for_the_kernel() {
    on_a_ring(async {
        let held = Rc::new(());
        // Nothing of this is handed out meanwhile: the task does not yield.
        let all: Vec<_> = (0..40_000).map(|_| nothing(&held, squeue::Flags::empty())).collect();
        for one in all {
            assert_eq!(one.await, 0);
        }
        assert_eq!(Driver::current().under_way(), 0);
    });
}
