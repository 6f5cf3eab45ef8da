//! Operations from start to end, on real rings.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use io_uring::opcode;

use super::*;
use crate as ring;

struct Nothing(#[expect(dead_code, reason = "kept alive")] Rc<()>);

impl Finished for Nothing {
    type Output = i32;

    fn finish(self, Completion { result, .. }: Completion) -> i32 {
        result
    }

    fn lost() -> i32 {
        -libc::ECANCELED
    }
}

fn nothing(held: &Rc<()>, flags: squeue::Flags) -> InFlight<Nothing> {
    // SAFETY: the entry names no memory and no descriptor.
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

/// Six times the submission queue, and more than the completion queue can hold.
#[test]
fn more_operations_than_the_queues_hold_all_end() {
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

/// Completed by a kernel thread while this thread sleeps.
#[test]
fn completion_by_a_kernel_thread_wakes_the_thread() {
    on_a_ring(async {
        for _ in 0..100 {
            assert_eq!(nothing(&Rc::new(()), squeue::Flags::ASYNC).await, 0);
        }
    });
}

/// A future that outlives its ring must not affect an operation of the next ring that has the same number.
#[test]
fn rings_on_one_thread_are_independent() {
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
fn lost_completions_end_all_operations_and_the_ring_continues() {
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

/// The kernel takes no more entries while it has completions that do not fit into the queue.
#[test]
fn pushing_never_waits_for_the_kernel() {
    on_a_ring(async {
        let held = Rc::new(());
        // No completion is delivered in the meantime, because the task does not yield.
        let all: Vec<_> = (0..40_000).map(|_| nothing(&held, squeue::Flags::empty())).collect();
        for one in all {
            assert_eq!(one.await, 0);
        }
        assert_eq!(Driver::current().under_way(), 0);
    });
}
