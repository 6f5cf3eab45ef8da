//! sluice killed while working, repeatedly: nothing is left behind, and the next process serves at once.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::leftovers::{all_kinds, gone, held, process};
use crate::proxy_support::{Origin, PATIENCE, Proxy, Setup, free_port, pattern, poll};

const ROUNDS: u32 = 20;
const CLIENTS: usize = 4;
const BODY: usize = 20_000;
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n";

/// Sends requests until the connection breaks; a wrong response is a different kind of error.
fn ask(address: SocketAddr, body: &[u8], answered: &AtomicUsize, ended: &AtomicBool) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    while !ended.load(Ordering::Relaxed) {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")?;
        let mut got = vec![0; HEAD.len() + BODY];
        stream.read_exact(&mut got)?;
        assert_eq!(&got[..HEAD.len()], HEAD.as_bytes());
        assert!(&got[HEAD.len()..] == body, "not what the origin sent");
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// An origin, and the number of its open connections.
fn origin(body: Vec<u8>) -> (Origin, Arc<AtomicUsize>) {
    let open = Arc::new(AtomicUsize::new(0));
    let shared = Arc::clone(&open);
    let answer = [HEAD.as_bytes(), &body].concat();
    let origin = Origin::playing(move |mut peer| {
        shared.fetch_add(1, Ordering::Relaxed);
        while peer.next().is_some() && peer.try_send(&answer).is_ok() {}
        drop(peer);
        shared.fetch_sub(1, Ordering::Relaxed);
    });
    (origin, open)
}

/// Starts it on `address`, or on any free port the first time.
fn start(origin: &Origin, address: Option<SocketAddr>, round: u32) -> Proxy {
    let address = address.map_or_else(|| format!("127.0.0.1:{}", free_port()), |address| address.to_string());
    Setup::to_origin(origin)
        .with("listeners.0.address", address)
        .with("response_request_id", false)
        .with("kernel.bypass", "required")
        .with("kernel.bypass_downstream", if round.is_multiple_of(2) { "off" } else { "on" })
        .with("workers", 2)
        .start()
        .unwrap()
}

#[test]
#[ignore = "needs root and BPF"]
fn twenty_kills_leave_nothing_behind() {
    let body = pattern(BODY);
    let (origin, open) = origin(body.clone());
    let (answered, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut proxy = start(&origin, None, 0);
    let address = proxy.address();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    if ask(address, &body, &answered, &ended).is_err() {
                        // No process listens for a while.
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
        let ended = Ended(&ended);
        for round in 1..=ROUNDS {
            let enough = answered.load(Ordering::Relaxed) + fastrand::usize(CLIENTS..300);
            poll("answers", || (answered.load(Ordering::Relaxed) >= enough).then_some(()));
            let objects = held(&process(&proxy));
            assert!(all_kinds(&objects), "{objects:?}");
            proxy.signal(Signal::SIGKILL);
            proxy.wait();
            gone(&objects);
            poll("the origin to see the ends", || (open.load(Ordering::Relaxed) == 0).then_some(()));
            proxy = start(&origin, Some(address), round);
            assert_eq!(proxy.get("/").body, body);
        }
        drop(ended);
    });
}

/// Stops the clients, also when the test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
