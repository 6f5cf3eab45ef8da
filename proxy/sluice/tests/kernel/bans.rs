//! Banned clients are turned away by the kernel, and nobody else is.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::proxy_support::{Origin, Proxy, Setup, poll, upgrade};

const BANNED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 5);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 6);
/// A listener has a socket for each worker, and the port of a client chooses among them.
const ATTEMPTS: usize = 40;

/// A connection attempt from an address.
fn begin(proxy: &Proxy, from: Ipv4Addr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.set_nonblocking(true).unwrap();
    // In progress; whether it is established shows afterwards.
    let _ = socket.connect(&proxy.address().into());
    socket
}

/// A connection from an address that is let in.
fn connect(proxy: &Proxy, from: Ipv4Addr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect_timeout(&proxy.address().into(), Duration::from_secs(60)).expect("it is let in");
    socket.into()
}

/// How many of some attempts of the banned client were established. The kernel takes the packets of loopback in order,
/// so once another client is in, this one would be.
///
/// The other client waits for its response: connections that no worker has closed yet weigh in the choice of a socket,
/// and could lead all attempts to the same one.
fn established(proxy: &Proxy) -> usize {
    (0..ATTEMPTS)
        .filter(|_| {
            let banned = begin(proxy, BANNED);
            assert!(is_served(proxy, OTHER), "others are served");
            banned.peer_addr().is_ok()
        })
        .count()
}

/// Whether a client is let in at all sockets of the listener, each time at its first packet.
fn is_let_in(proxy: &Proxy, from: Ipv4Addr) -> bool {
    let dropped = proxy.metric("sluice_bans_dropped_total");
    (0..ATTEMPTS).for_each(|_| drop(connect(proxy, from)));
    proxy.metric("sluice_bans_dropped_total").to_bits() == dropped.to_bits()
}

fn is_served(proxy: &Proxy, from: Ipv4Addr) -> bool {
    let (mut stream, mut response) = (connect(proxy, from), String::new());
    let is_asked = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").is_ok();
    is_asked && stream.read_to_string(&mut response).is_ok() && response.starts_with("HTTP/1.1 200")
}

fn ban(proxy: &Proxy) {
    let (code, said) = proxy.command("bans", &["add", &BANNED.to_string(), "--for", "1h"]);
    assert_eq!(code, Some(0), "{said}");
}

fn is_shut_out(proxy: &Proxy) {
    poll("all sockets of the listener turn the client away", || (established(proxy) == 0).then_some(()));
}

fn setup(origin: &Origin) -> Setup {
    Setup::to_origin(origin).with("kernel.bans", "required").with("workers", 2)
}

/// The configuration with one key changed.
fn with(proxy: &Proxy, pointer: &str, key: &str, value: Value) -> Value {
    let mut config: Value = serde_json::from_str(&proxy.config.to_string()).unwrap();
    config.pointer_mut(pointer).unwrap()[key] = value;
    config
}

#[test]
#[ignore = "needs root and BPF"]
fn banned_client_never_reaches_a_worker() {
    let origin = Origin::saying("hello");
    let proxy = setup(&origin).start().unwrap();
    assert!(is_served(&proxy, BANNED));
    ban(&proxy);
    is_shut_out(&proxy);
    let (seen, dropped) = ("sluice_bans_turned_away_total", "sluice_bans_dropped_total");
    let (seen_before, dropped_before) = (proxy.metric(seen), proxy.metric(dropped));
    assert_eq!(established(&proxy), 0);
    assert!(proxy.metric(dropped) >= dropped_before + ATTEMPTS as f64);
    assert_eq!(proxy.metric(seen).to_bits(), seen_before.to_bits());
    assert_eq!(proxy.command("bans", &["remove", &BANNED.to_string()]).0, Some(0));
    assert!((0..ATTEMPTS).all(|_| is_served(&proxy, BANNED)), "and so is the client without its ban");
}

#[test]
#[ignore = "needs root and BPF"]
fn ban_ends_in_the_kernel_by_itself() {
    let origin = Origin::saying("hello");
    let proxy = setup(&origin).start().unwrap();
    let (code, said) = proxy.command("bans", &["add", &BANNED.to_string(), "--for", "2s"]);
    assert_eq!(code, Some(0), "{said}");
    poll("the client is served again", || is_served(&proxy, BANNED).then_some(()));
}

#[test]
#[ignore = "needs root and BPF"]
fn reload_lets_a_new_proxy_in() {
    let origin = Origin::saying("hello");
    let proxy = setup(&origin).start().unwrap();
    ban(&proxy);
    is_shut_out(&proxy);
    // It may be that of a proxy now, with others behind it.
    let trusting = with(&proxy, "", "trusted_proxies", json!([format!("{BANNED}/32")]));
    assert_eq!(proxy.reload(&trusting).0, Some(0));
    assert!(is_let_in(&proxy, BANNED));
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    is_shut_out(&proxy);
    let behind = with(&proxy, "/listeners/0", "proxy_protocol", "v1".into());
    assert_eq!(proxy.reload(&behind).0, Some(0));
    assert!(is_let_in(&proxy, BANNED));
}

#[test]
#[ignore = "needs root and BPF"]
fn another_process_has_the_bans_and_none_of_the_rest() {
    let origin = Origin::saying("hello");
    let proxy = setup(&origin).start().unwrap();
    ban(&proxy);
    is_shut_out(&proxy);
    // Meanwhile the client does not stop: what it meets in the old process must not stay at the sockets.
    let is_over = AtomicBool::new(false);
    let _next = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(begin(&proxy, BANNED));
            }
        });
        let next = upgrade(&proxy);
        is_over.store(true, Ordering::Relaxed);
        next
    });
    is_shut_out(&proxy);
    assert_eq!(proxy.command("bans", &["remove", &BANNED.to_string()]).0, Some(0));
    assert!((0..ATTEMPTS).all(|_| is_served(&proxy, BANNED)));
}
