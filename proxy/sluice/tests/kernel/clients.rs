//! Clients of this host, joined with connections that sluice accepts, and only with those.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use sluice_ebpf::Counter;
use sluice_kernel::program::Limits;

use crate::support::{Rig, dual_stack};

fn serving(listener: &TcpListener) -> Rig {
    let mut rig = Rig::with(Limits { clients: true, ..Limits::default() });
    rig.bypass.serve_clients(listener.as_fd()).unwrap();
    rig
}

/// Echoes in both directions over a connection to `address`; returns how many messages were joined.
fn joined_messages(rig: &Rig, listener: &TcpListener, address: SocketAddr) -> u64 {
    let before = rig.count(Counter::MessagesJoined);
    let mut client = TcpStream::connect(address).unwrap();
    let mut server = listener.accept().unwrap().0;
    let mut got = [0; 5];
    client.write_all(b"hello").unwrap();
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    server.write_all(b"HELLO").unwrap();
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"HELLO");
    rig.count(Counter::MessagesJoined) - before
}

#[test]
#[ignore = "needs root and BPF"]
fn clients_of_our_listener_are_joined() {
    for listener in [
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
        TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap(),
    ] {
        let rig = serving(&listener);
        let address = listener.local_addr().unwrap();
        assert_eq!(joined_messages(&rig, &listener, address), 2, "{address}: {}", rig.counts());
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn clients_of_our_wildcard_listener_are_joined() {
    let (listener, address) = dual_stack();
    let rig = serving(&listener);
    assert_eq!(joined_messages(&rig, &listener, address), 2, "{}", rig.counts());
}

/// sluice listens on the port at any address, and another process at this one.
#[test]
#[ignore = "needs root and BPF"]
fn clients_of_another_listener_are_not_joined() {
    let (ours, address) = dual_stack();
    let rig = serving(&ours);
    let Ok(theirs) = TcpListener::bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, 9), address.port())))
    else {
        // The kernel forbids this, which is also safe.
        return;
    };
    assert_eq!(joined_messages(&rig, &theirs, theirs.local_addr().unwrap()), 0, "{}", rig.counts());
}
