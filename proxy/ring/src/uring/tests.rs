//! Operations from their start to their end, on real rings.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::net::{TcpListener, TcpStream};
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
    if let Err(error) = ring::run(future) {
        eprintln!("skipped: no ring: {error}");
    }
}

fn pair() -> (Fd, Fd) {
    let (one, other) = UnixStream::pair().unwrap();
    (Rc::new(OwnedFd::from(one)), Rc::new(OwnedFd::from(other)))
}

/// Waits until nobody but the test holds it.
async fn let_go<T>(held: &Rc<T>) {
    while Rc::strong_count(held) > 1 {
        tokio::task::yield_now().await;
    }
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

#[test]
fn a_dropped_operation_keeps_what_it_owns_until_it_has_ended() {
    on_a_ring(async {
        let (ours, theirs) = pair();
        let waiting = ring::recv(&ours, Vec::with_capacity(8), true);
        drop(waiting);
        tokio::task::yield_now().await;
        assert_eq!(Rc::strong_count(&ours), 2, "the kernel may write to its buffer");
        let (sent, _) = ring::send(&theirs, b"late".to_vec(), 0, true).await;
        assert_eq!(sent.unwrap(), 4);
        let_go(&ours).await;
        let waiting = ring::recv(&ours, Vec::with_capacity(8), true);
        waiting.cancel();
        drop(waiting);
        let_go(&ours).await;
    });
}

#[test]
fn a_cancelled_operation_alone_ends() {
    on_a_ring(async {
        let (ours, theirs) = pair();
        let receiving = ring::recv(&ours, Vec::with_capacity(8), true);
        // More than the socket takes, so it goes on.
        let sending = ring::send(&ours, vec![7; 1 << 20], 0, true);
        let other = ring::recv(&theirs, Vec::with_capacity(8), true);
        receiving.cancel();
        assert_eq!(receiving.await.0.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        assert_eq!(other.await.1, [7; 8], "the send has not ended with it");
        sending.cancel();
        // A part of it has left.
        assert!(sending.await.0.unwrap() < 1 << 20);
    });
}

#[test]
fn a_late_cancellation_ends_no_other_operation() {
    on_a_ring(async {
        for _ in 0..100 {
            let (ours, theirs) = pair();
            let first = ring::recv(&ours, Vec::with_capacity(8), true);
            ring::send(&theirs, b"first".to_vec(), 0, true).await.0.unwrap();
            // It may have ended, or end just now. What comes next gets its place.
            first.cancel();
            drop(first);
            let second = ring::recv(&theirs, Vec::with_capacity(8), true);
            ring::send(&ours, b"second".to_vec(), 0, true).await.0.unwrap();
            assert_eq!(second.await.1, b"second");
        }
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

#[test]
fn a_connection_that_comes_for_nobody_is_closed() {
    on_a_ring(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket: Fd = Rc::new(listener.into());
        let accepting = ring::accept(&socket);
        tokio::task::yield_now().await;
        drop(accepting);
        let mut client = TcpStream::connect(address).unwrap();
        let_go(&socket).await;
        // Were it open, this would wait for ever.
        assert_eq!(std::io::Read::read(&mut client, &mut [0]).unwrap_or(0), 0);
    });
}

#[test]
fn a_file_that_is_opened_for_nobody_is_closed() {
    on_a_ring(async {
        let path = std::env::temp_dir().join(format!("sluice-ring-{}", std::process::id()));
        std::fs::write(&path, "x").unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let is_open = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap();
            all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()).any(|target| target == path)
        };
        let kept = ring::open(name.clone(), libc::O_RDONLY, 0).await.unwrap();
        assert!(is_open());
        drop(kept);
        for _ in 0..50 {
            let mut opening = std::pin::pin!(ring::open(name.clone(), libc::O_RDONLY, 0));
            let submitted =
                std::future::poll_fn(|cx| std::task::Poll::Ready(opening.as_mut().poll(cx))).await;
            assert!(submitted.is_pending());
        }
        while Driver::current().under_way() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(!is_open());
        std::fs::remove_file(path).unwrap();
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

/// Sends, receives, cancellations and drops at random: every byte arrives once and in order, and nothing is left.
#[test]
fn cancelled_at_random_nothing_is_lost_or_doubled() {
    const BYTES: usize = 1 << 20;
    on_a_ring(async {
        let seed = fastrand::u64(..);
        let message: Vec<u8> = (0..BYTES).map(|at| (at * 31 + at / 251) as u8).collect();
        let (ours, theirs) = pair();
        let sending = tokio::task::spawn_local({
            let (message, mut random) = (message.clone(), fastrand::Rng::with_seed(seed));
            async move {
                let mut at = 0;
                while at < message.len() {
                    let end = (at + random.usize(1..9000)).min(message.len());
                    let send = ring::send(&ours, message[at..end].to_vec(), 0, random.bool());
                    if random.u8(..4) == 0 {
                        if random.bool() {
                            tokio::task::yield_now().await;
                        }
                        send.cancel();
                    }
                    at += send.await.0.or_else(cancelled).unwrap();
                }
            }
        });
        let mut random = fastrand::Rng::with_seed(!seed);
        let mut received = Vec::new();
        while received.len() < BYTES {
            let receive = ring::recv(&theirs, Vec::with_capacity(random.usize(1..9000)), random.bool());
            if random.u8(..4) == 0 {
                receive.cancel();
            }
            let (outcome, buf) = receive.await;
            outcome.or_else(cancelled).unwrap();
            received.extend_from_slice(&buf);
        }
        sending.await.unwrap();
        assert!(received == message, "seed {seed}");
        assert_eq!(Driver::current().under_way(), 0, "seed {seed}");
        // Left alone at random, too.
        for _ in 0..2000 {
            let receive = ring::recv(&theirs, Vec::with_capacity(8), random.bool());
            if random.bool() {
                tokio::task::yield_now().await;
            }
            receive.cancel();
        }
        let_go(&theirs).await;
        assert_eq!(Driver::current().under_way(), 0, "seed {seed}");
    });
}

fn cancelled(error: io::Error) -> io::Result<usize> {
    if error.raw_os_error() == Some(libc::ECANCELED) { Ok(0) } else { Err(error) }
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
