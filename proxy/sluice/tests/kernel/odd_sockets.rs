//! Sockets other than plain TCP are not joined, and work.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpUlp;
use sluice_ebpf::{Counter, Wish};
use socket2::{Domain, Protocol, Socket, Type};

use crate::proxy_support::{Origin, Setup, Wire, assert_same, pattern};
use crate::support::Rig;

/// Bypasses the test harness, which hides the output of passing tests.
fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}

/// `None`, with a note, if the kernel has no MPTCP.
fn socket(protocol: Protocol) -> Option<Socket> {
    match Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)) {
        Ok(socket) => Some(socket),
        Err(error) => {
            skipped(&format!("this kernel has no such socket: {error}"));
            None
        }
    }
}

fn listening(protocol: Protocol) -> Option<TcpListener> {
    let socket = socket(protocol)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    socket.listen(16).unwrap();
    Some(socket.into())
}

/// Bytes in both directions, of both relevant sizes, and the end.
fn talk(mut active: TcpStream, mut passive: TcpStream) {
    let large = pattern(30_000);
    for _ in 0..10 {
        active.write_all(b"question").unwrap();
        passive.read_exact(&mut [0; 8]).unwrap();
        passive.write_all(&large).unwrap();
        let mut got = vec![0; large.len()];
        active.read_exact(&mut got).unwrap();
        assert_same(&got, &large);
    }
    drop(active);
    assert_eq!(passive.read(&mut [0]).unwrap(), 0);
}

#[test]
#[ignore = "needs root and BPF"]
fn an_mptcp_connection_is_not_joined() {
    use Protocol as P;
    for [client, server] in [[P::MPTCP, P::TCP], [P::MPTCP, P::MPTCP]] {
        let (Some(listener), Some(socket)) = (listening(server), socket(client)) else { return };
        let mut rig = Rig::new();
        rig.mark(socket.as_fd(), Wish::SameNamespace);
        socket.connect(&listener.local_addr().unwrap().into()).unwrap();
        talk(socket.into(), listener.accept().unwrap().0);
        let counts = rig.counts();
        assert_eq!(rig.count(Counter::MessagesJoined), 0, "{client:?} to {server:?}: {counts}");
        assert_eq!(rig.count(Counter::PairsJoined), 0, "{client:?} to {server:?}: {counts}");
    }
}

/// An application that listens with MPTCP, as Go's do. A connection that it accepts from a plain TCP client is an
/// ordinary socket, which may be joined.
#[test]
#[ignore = "needs root and BPF"]
fn an_origin_that_listens_with_mptcp_is_served() {
    let Some(listener) = listening(Protocol::MPTCP) else { return };
    let address = listener.local_addr().unwrap().to_string();
    let answers = 100;
    let body = pattern(50_000);
    let answer =
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let serving = std::thread::spawn(move || {
        let mut served = 0;
        while served < answers {
            let mut peer = Wire::from(listener.accept().unwrap().0);
            while served < answers && peer.try_request().is_ok() {
                peer.send(&answer);
                served += 1;
            }
        }
    });
    let setup = Setup::to(&[&address]).with("kernel.bypass", "required");
    let proxy = setup.start().unwrap();
    for _ in 0..answers {
        assert_same(&proxy.get("/").body, &body);
    }
    serving.join().unwrap();
}

/// A client that connects to sluice with MPTCP, with joining of clients enabled.
#[test]
#[ignore = "needs root and BPF"]
fn a_client_that_speaks_mptcp_is_served() {
    let Some(socket) = socket(Protocol::MPTCP) else { return };
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin).with("kernel.bypass", "required");
    let proxy = setup.with("kernel.bypass_downstream", "on").start().unwrap();
    socket.connect(&proxy.address().into()).unwrap();
    let mut wire = Wire::from(TcpStream::from(socket));
    for _ in 0..5 {
        assert_eq!(wire.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "hi");
    }
    // The connection to the origin.
    assert_eq!(proxy.metric("sluice_bypass_pairs_joined_total"), 1.0);
}

#[test]
#[ignore = "needs root and BPF"]
fn a_socket_with_a_ulp_works() {
    let mut rig = Rig::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let plain = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let accepted = listener.accept().unwrap().0;
    if let Err(error) = setsockopt(&accepted, TcpUlp::default(), b"tls") {
        let kind = std::io::Error::from(error).kind();
        assert!(kind == ErrorKind::NotFound, "{error}");
        return skipped("this kernel has no kernel TLS");
    }
    // No keys are set: bytes pass unchanged.
    talk(plain, accepted);
    let active = rig.connect(listener.local_addr().unwrap());
    let accepted = listener.accept().unwrap().0;
    // In the map by now, where a ULP is either refused or leaves the bytes alone.
    let has_it = setsockopt(&accepted, TcpUlp::default(), b"tls").is_ok();
    talk(active, accepted);
    assert_eq!(rig.count(Counter::Ulp) > 0, has_it, "{}", rig.counts());
}
