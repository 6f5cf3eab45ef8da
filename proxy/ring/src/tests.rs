//! Operations from start to end, on each engine that this host has.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::*;
use crate as ring;

const RINGS: [Engine; 2] = [Engine::IoUring, Engine::TokioUring];

/// Runs a test on each of `engines`, each in a new thread, because the engine of a thread never changes.
fn by<F: Future<Output = ()>>(engines: &[Engine], test: impl Fn(Engine) -> F + Send + Sync) {
    for engine in engines {
        let test = &test;
        eprintln!("on {engine}");
        thread::scope(|scope| {
            let ran = scope.spawn(move || ring::run(*engine, test(*engine))).join();
            match ran {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("skipped: no {engine}: {error}"),
                Err(panic) => {
                    eprintln!("failed on {engine}");
                    std::panic::resume_unwind(panic);
                }
            }
        });
    }
}

fn pair() -> (Fd, Fd) {
    let (one, other) = UnixStream::pair().unwrap();
    (OwnedFd::from(one).into(), OwnedFd::from(other).into())
}

/// Lets the thread sleep: tokio-uring submits only before it sleeps.
async fn idle() {
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
}

/// Waits until only the test holds it.
async fn let_go(fd: &Fd) {
    while fd.holders() > 1 {
        idle().await;
    }
}

#[test]
fn dropped_operation_keeps_its_data_until_it_ends() {
    by(&RINGS, |_| async {
        let (ours, theirs) = pair();
        let waiting = ring::recv(&ours, Vec::with_capacity(8), true);
        drop(waiting);
        tokio::task::yield_now().await;
        assert_eq!(ours.holders(), 2, "the kernel may still write to the buffer");
        let (sent, _) = ring::send(&theirs, b"late".to_vec(), 0, true).await;
        assert_eq!(sent.unwrap(), 4);
        let_go(&ours).await;
        let waiting = ring::recv(&ours, Vec::with_capacity(8), true);
        waiting.cancel();
        drop(waiting);
        let_go(&ours).await;
    });
}

/// What another thread has sent before is seen, although this thread does not enter the kernel in between.
#[test]
fn receive_that_caught_up_has_everything_that_had_arrived() {
    by(&[Engine::IoUring, Engine::Epoll], |_| async {
        for _ in 0..200 {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let ours = OwnedFd::from(ours).into();
            let mut receiving = ring::recv(&ours, Vec::with_capacity(8), true);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut receiving).poll(&mut cx).is_pending());
            idle().await;
            assert!(receiving.catch_up());
            assert!(Pin::new(&mut receiving).poll(&mut cx).is_pending());
            let has_sent = AtomicUsize::new(0);
            thread::scope(|scope| {
                scope.spawn(|| {
                    theirs.write_all(b"sent").unwrap();
                    has_sent.store(1, Ordering::Release);
                });
                while has_sent.load(Ordering::Acquire) == 0 {
                    std::hint::spin_loop();
                }
                assert!(receiving.catch_up());
                let Poll::Ready((outcome, buf)) = Pin::new(&mut receiving).poll(&mut cx) else {
                    panic!("not seen")
                };
                assert_eq!((outcome.unwrap(), &buf[..]), (4, &b"sent"[..]));
            });
        }
    });
}

#[test]
fn receive_that_the_kernel_does_not_have_is_not_trusted() {
    by(&RINGS, |_| async {
        let (ours, _theirs) = pair();
        let mut receiving = ring::recv(&ours, Vec::with_capacity(8), true);
        assert!(!receiving.catch_up());
    });
}

/// More at once than a ring has buffers, at the start and at most.
#[test]
fn lent_receives_keep_their_bytes_apart() {
    by(&Engine::ALL, |_| async {
        let mut pairs: Vec<_> = (0..160)
            .map(|_| {
                let (ours, theirs) = UnixStream::pair().unwrap();
                (Fd::from(OwnedFd::from(ours)), theirs)
            })
            .collect();
        for round in 0..5 {
            let message = |which: usize| format!("{round} {which} ").repeat(1 + which % 250).into_bytes();
            let receiving: Vec<_> =
                pairs.iter().map(|(ours, _)| ring::recv_lent(ours, 2048, round % 2 == 0)).collect();
            idle().await;
            for (which, (_, theirs)) in pairs.iter_mut().enumerate() {
                theirs.write_all(&message(which)).unwrap();
            }
            for (which, one) in receiving.into_iter().enumerate() {
                let (outcome, bytes) = one.await;
                assert_eq!(outcome.unwrap(), bytes.len());
                assert_eq!(bytes, message(which), "{which}");
            }
        }
        let (ours, theirs) = pairs.pop().unwrap();
        drop(theirs);
        assert_eq!(ring::recv_lent(&ours, 2048, true).await.0.unwrap(), 0);
    });
}

#[test]
fn lent_receive_takes_no_more_than_it_may() {
    by(&Engine::ALL, |_| async {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = OwnedFd::from(ours).into();
        let sent: Vec<u8> = (0..5000_u16).map(|place| place as u8).collect();
        theirs.write_all(&sent).unwrap();
        let mut received = Vec::new();
        while received.len() < sent.len() {
            let (outcome, bytes) = ring::recv_lent(&ours, 2048, false).await;
            assert!(outcome.unwrap() <= 2048);
            received.extend(bytes);
        }
        assert_eq!(received, sent);
    });
}

#[test]
fn abandoned_and_cancelled_lent_receives_return_their_buffers() {
    by(&Engine::ALL, |engine| async move {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours: Fd = OwnedFd::from(ours).into();
        for round in 0..400 {
            let receiving = ring::recv_lent(&ours, 2048, true);
            if round % 2 == 0 {
                receiving.cancel();
                assert!(receiving.await.0.is_err());
                continue;
            }
            idle().await;
            theirs.write_all(b"lost").unwrap();
            drop(receiving);
            let_go(&ours).await;
            // A ring goes on with an abandoned receive.
            if engine == Engine::Epoll {
                assert_eq!(ring::recv_lent(&ours, 2048, false).await.0.unwrap(), 4);
            }
        }
        theirs.write_all(b"kept").unwrap();
        let (outcome, bytes) = ring::recv_lent(&ours, 2048, true).await;
        assert_eq!((outcome.unwrap(), &bytes[..]), (4, &b"kept"[..]));
        if engine == Engine::IoUring && uring::has_lender() {
            assert_eq!(bytes.capacity(), 4, "a buffer of its own would have more room");
        }
    });
}

#[test]
fn cancelling_ends_only_one_operation() {
    by(&Engine::ALL, |_| async {
        let (ours, theirs) = pair();
        let receiving = ring::recv(&ours, Vec::with_capacity(8), true);
        // More than the socket takes, so it continues.
        let sending = ring::send(&ours, vec![7; 1 << 20], 0, true);
        let other = ring::recv(&theirs, Vec::with_capacity(8), true);
        receiving.cancel();
        assert_eq!(receiving.await.0.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        assert_eq!(other.await.1, [7; 8], "the send continues");
        sending.cancel();
        // A part of it has left.
        assert!(sending.await.0.unwrap() < 1 << 20);
    });
}

#[test]
fn late_cancellation_ends_no_other_operation() {
    by(&Engine::ALL, |_| async {
        for _ in 0..100 {
            let (ours, theirs) = pair();
            let first = ring::recv(&ours, Vec::with_capacity(8), true);
            ring::send(&theirs, b"first".to_vec(), 0, true).await.0.unwrap();
            // It may have ended, or end right now. The next operation gets its place.
            first.cancel();
            drop(first);
            let second = ring::recv(&theirs, Vec::with_capacity(8), true);
            ring::send(&ours, b"second".to_vec(), 0, true).await.0.unwrap();
            assert_eq!(second.await.1, b"second");
        }
    });
}

#[test]
fn connection_of_a_dropped_accept_is_closed() {
    by(&RINGS, |_| async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket = Fd::from(OwnedFd::from(listener));
        let accepting = ring::accept(&socket);
        tokio::task::yield_now().await;
        drop(accepting);
        let mut client = TcpStream::connect(address).unwrap();
        let_go(&socket).await;
        // If it were open, this read would wait forever.
        assert_eq!(std::io::Read::read(&mut client, &mut [0]).unwrap_or(0), 0);
    });
}

#[test]
fn file_of_a_dropped_open_is_closed() {
    by(&Engine::ALL, |engine| async move {
        let path = std::env::temp_dir().join(format!("sluice-ring-{}-{engine}", std::process::id()));
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
            // A blocking thread may have been faster than this one.
            assert!(submitted.is_pending() || engine == Engine::Epoll);
        }
        while is_open() {
            idle().await;
        }
        std::fs::remove_file(path).unwrap();
    });
}

/// Random sends, receives, cancellations and drops: every byte arrives once and in order, and no operation remains.
#[test]
fn random_cancellations_lose_and_duplicate_nothing() {
    const BYTES: usize = 1 << 20;
    by(&Engine::ALL, |_| async {
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
        // Also with random drops.
        for _ in 0..2000 {
            let receive = ring::recv(&theirs, Vec::with_capacity(8), random.bool());
            if random.bool() {
                tokio::task::yield_now().await;
            }
            receive.cancel();
        }
        let_go(&theirs).await;
    });
}

fn cancelled(error: io::Error) -> io::Result<usize> {
    if error.raw_os_error() == Some(libc::ECANCELED) { Ok(0) } else { Err(error) }
}

const ROUNDS: usize = 200;

/// A wait that is cancelled by the first system call after it was woken ends without the connection it was woken for.
#[test]
fn connection_of_a_cancelled_wait_is_still_accepted() {
    by(&Engine::ALL, |_| async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (waits, connected) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let client = thread::spawn({
            let (waits, connected) = (Arc::clone(&waits), Arc::clone(&connected));
            move || {
                for round in 1..=ROUNDS {
                    while waits.load(Ordering::Acquire) < round {
                        thread::yield_now();
                    }
                    let _client = TcpStream::connect(address).unwrap();
                    connected.store(round, Ordering::Release);
                }
            }
        });
        let socket = Fd::from(OwnedFd::from(listener));
        for round in 1..=ROUNDS {
            let wait = accept(&socket);
            tokio::task::yield_now().await;
            waits.store(round, Ordering::Release);
            while connected.load(Ordering::Acquire) < round {
                std::hint::spin_loop();
            }
            let accepted = match wait.stop().await {
                Ok(_) => true,
                Err(_) => accept_waiting(&socket).await.unwrap().is_some(),
            };
            assert!(accepted, "connection {round} was lost");
            assert!(accept_waiting(&socket).await.unwrap().is_none());
        }
        client.join().unwrap();
    });
}

#[test]
fn burst_accepts_exactly_the_waiting_connections() {
    by(&Engine::ALL, |_| async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let socket = Fd::from(OwnedFd::from(listener));
        let mut peers = Vec::new();
        for expected in [16, 4, 0] {
            let burst = accept_burst(&socket, 16).await;
            assert_eq!(burst.len(), expected);
            peers.extend(burst.iter().map(|(_, peer)| peer.as_socket().unwrap()));
        }
        let connected: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
        assert_eq!(peers, connected);
    });
}

/// A burst must not wait for a connection that does not come. The connections arrive while its accepts begin to wait.
#[test]
fn burst_ends_however_connections_arrive() {
    const ROUNDS: usize = 300;
    const CONNECTIONS: usize = 40;
    by(&Engine::ALL, |_| async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (go, gone) = mpsc::channel::<()>();
        let client = thread::spawn(move || {
            while gone.recv().is_ok() {
                (0..CONNECTIONS).for_each(|_| drop(TcpStream::connect(address).unwrap()));
            }
        });
        let socket = Fd::from(OwnedFd::from(listener));
        for _ in 0..ROUNDS {
            go.send(()).unwrap();
            let mut accepted = 0;
            while accepted < CONNECTIONS {
                accepted += accept_burst(&socket, 16).await.len();
                tokio::task::yield_now().await;
            }
            assert_eq!(accepted, CONNECTIONS);
        }
        drop(go);
        client.join().unwrap();
    });
}

/// The socket is full, and nothing polls the send meanwhile.
#[test]
fn whole_send_continues_without_polling() {
    const BYTES: usize = 1 << 20;
    by(&Engine::ALL, |_| async {
        let (ours, theirs) = pair();
        let sending = send(&ours, vec![7; BYTES], 0, true);
        let mut received = 0;
        while received < BYTES {
            received += recv(&theirs, Vec::with_capacity(9000), true).await.0.unwrap();
        }
        assert_eq!(sending.await.0.unwrap(), BYTES);
    });
}

/// Set in the process that the next test starts.
const WITHOUT_DESCRIPTORS: &str = "SLUICE_RING_TEST_WITHOUT_DESCRIPTORS";

/// In a process of its own, because all of its threads share the limit.
#[test]
fn epoll_sends_without_a_free_descriptor() {
    if std::env::var_os(WITHOUT_DESCRIPTORS).is_none() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::epoll_sends_without_a_free_descriptor"])
            .env(WITHOUT_DESCRIPTORS, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        // Without the count, a child that runs no test would pass.
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    const BYTES: usize = 1 << 20;
    by(&[Engine::Epoll], |_| async {
        let (ours, theirs) = pair();
        let receiving = tokio::task::spawn_local(async move {
            let mut received = 0;
            while received < BYTES {
                received += recv(&theirs, Vec::with_capacity(9000), true).await.0.unwrap();
            }
        });
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 100, hard).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| ours.as_fd().try_clone_to_owned().ok()).collect();
        assert_eq!(ours.room().unwrap_err().raw_os_error(), Some(libc::EMFILE));
        assert_eq!(send(&ours, vec![7; BYTES], 0, true).await.0.unwrap(), BYTES);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        drop(taken);
        receiving.await.unwrap();
    });
}

#[test]
fn waiting_for_hangup_takes_no_event_from_a_receive() {
    by(&Engine::ALL, |_| async {
        let (ours, theirs) = pair();
        let end = tokio::task::spawn_local({
            let ours = Fd::clone(&ours);
            async move { poll(&ours, libc::POLLRDHUP).await }
        });
        for _ in 0..100 {
            let receiving = tokio::task::spawn_local(recv(&ours, Vec::with_capacity(8), true));
            tokio::task::yield_now().await;
            send(&theirs, b"some".to_vec(), 0, true).await.0.unwrap();
            assert_eq!(receiving.await.unwrap().1, b"some");
            assert!(!end.is_finished());
        }
        drop(theirs);
        end.await.unwrap().unwrap();
    });
}

#[test]
fn connect_returns_its_result() {
    by(&Engine::ALL, |_| async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket = || {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            Fd::from(OwnedFd::from(socket.unwrap()))
        };
        let connected = socket();
        connect(&connected, address.into()).await.unwrap();
        send(&connected, b"hello".to_vec(), 0, true).await.0.unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let mut hello = [0; 5];
        std::io::Read::read_exact(&mut accepted, &mut hello).unwrap();
        assert_eq!(&hello, b"hello");
        drop((accepted, listener));
        let refused = connect(&socket(), address.into()).await.unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ECONNREFUSED));
    });
}

#[test]
fn files_below_a_folder_are_opened_by_each_way_and_nothing_else() {
    let folder = std::env::temp_dir().join(format!("sluice-ring-beneath-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("sub")).unwrap();
    std::fs::write(folder.join("sub/file"), "content").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("out")).unwrap();
    std::os::unix::fs::symlink("sub/file", folder.join("in")).unwrap();
    by(&Engine::ALL, |_| async {
        let root = OwnedFd::from(std::fs::File::open(&folder).unwrap()).into();
        for (name, wanted) in [
            ("sub/file", Ok(())),
            ("in", Ok(())),
            ("sub/../in", Ok(())),
            ("nothing", Err(libc::ENOENT)),
            ("out", Err(libc::EXDEV)),
            ("../x", Err(libc::EXDEV)),
            ("/etc/passwd", Err(libc::EXDEV)),
        ] {
            let path = std::ffi::CString::new(name).unwrap();
            let code =
                |opened: io::Result<OwnedFd>| opened.map(drop).map_err(|error| error.raw_os_error().unwrap());
            assert_eq!(code(ring::open_beneath(&root, path.clone()).await), wanted, "{name}");
            assert_eq!(code(file::look_beneath(&root, path).await), wanted, "{name}");
        }
    });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn pages_of_a_file_are_sent_as_far_as_the_socket_takes_them() {
    let path = std::env::temp_dir().join(format!("sluice-ring-pages-{}", std::process::id()));
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    by(&Engine::ALL, |_| async {
        let file: Fd = OwnedFd::from(std::fs::File::open(&path).unwrap()).into();
        // It was just written.
        assert_ne!(ring::is_resident(&file, 0, content.len() as u64), Some(false));
        let (one, mut other) = UnixStream::pair().unwrap();
        let one: Fd = OwnedFd::from(one).into();
        let reading = content.len();
        let reader = thread::spawn(move || {
            let mut got = vec![0; reading];
            io::Read::read_exact(&mut other, &mut got).unwrap();
            got
        });
        let mut at = 0;
        while at < content.len() {
            match ring::send_file_now(&one, &file, at as u64, content.len()) {
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ring::poll(&one, libc::POLLOUT).await.unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(ring::send_file_now(&one, &file, at as u64, 1).unwrap(), 0);
        assert!(reader.join().unwrap() == content);
    });
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn files_are_written_and_read_at_any_offset() {
    by(&Engine::ALL, |_| async {
        let directory = std::ffi::CString::new(std::env::temp_dir().to_str().unwrap()).unwrap();
        let flags = libc::O_RDWR | libc::O_EXCL | libc::O_TMPFILE;
        let file = Fd::from(open(directory, flags, 0o600).await.unwrap());
        assert_eq!(write_at(&file, b"??bytes".to_vec(), 2, 3).await.0.unwrap(), 5);
        let mut buf = Vec::with_capacity(100);
        buf.extend_from_slice(b"its ");
        let (read, buf) = read_at(&file, buf, 96, 3).await;
        assert_eq!((read.unwrap(), buf.as_slice()), (5, b"its bytes".as_slice()));
        let (read, buf) = read_at(&file, buf, 2, 3).await;
        assert_eq!((read.unwrap(), buf.as_slice()), (2, b"its bytesby".as_slice()));
        assert_eq!(read_at(&file, buf, 8, 8).await.0.unwrap(), 0);
        close(file.into_inner().unwrap());
    });
}
