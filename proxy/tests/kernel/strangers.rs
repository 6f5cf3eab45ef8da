//! Connections that sluice did not ask for are left alone.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

use sluice_ebpf::Counter;

use crate::support::Rig;

const ADDRESS: &str = "SLUICE_KERNEL_CONNECT";

#[test]
#[ignore = "needs root and BPF"]
fn an_unmarked_connection_of_our_own_is_not_joined() {
    let rig = Rig::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut passive = listener.accept().unwrap().0;
    active.write_all(b"hello").unwrap();
    passive.read_exact(&mut [0; 5]).unwrap();
    assert!(!rig.bypass.is_joined(active.as_fd()).unwrap());
    assert!(!rig.bypass.is_joined(passive.as_fd()).unwrap());
    assert_eq!(rig.counts(), "", "nothing was counted");
}

#[test]
#[ignore = "needs root and BPF"]
fn another_process_is_not_joined_beside_a_pair_that_is() {
    let mut rig = Rig::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let _pair = rig.pair(&listener, address);
    let mut stranger = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "strangers::process_that_connects"])
        .env(ADDRESS, address.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut passive = listener.accept().unwrap().0;
    let mut text = String::new();
    passive.read_to_string(&mut text).unwrap();
    assert!(stranger.wait().unwrap().success());
    assert_eq!(text, "hello");
    assert!(!rig.bypass.is_joined(passive.as_fd()).unwrap());
    assert_eq!(rig.count(Counter::PairsJoined), 1, "{}", rig.counts());
    assert_eq!(rig.count(Counter::MessagesJoined), 0, "{}", rig.counts());
}

/// Not a test of its own: what the one above starts.
#[test]
#[ignore = "started by another test"]
fn process_that_connects() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    TcpStream::connect(address).unwrap().write_all(b"hello").unwrap();
}
