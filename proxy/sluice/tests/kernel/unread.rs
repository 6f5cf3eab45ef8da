//! What an application has not read is seen from sluice's side.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};

use crate::support::{Rig, wait_for};

#[test]
#[ignore = "needs root and BPF"]
fn bytes_unread_are_told_until_they_are_read() {
    let mut rig = Rig::new();
    let mut pair = rig.loopback();
    assert_eq!(rig.unread(&pair), 0);
    pair.active.write_all(&[1; 300]).unwrap();
    assert_eq!(rig.unread(&pair), 300);
    pair.passive.read_exact(&mut [0; 100]).unwrap();
    assert_eq!(rig.unread(&pair), 200);
    pair.passive.read_exact(&mut [0; 200]).unwrap();
    assert_eq!(rig.unread(&pair), 0);
}

/// A connection that waits to be accepted cannot have been read.
#[test]
#[ignore = "needs root and BPF"]
fn who_is_not_accepted_owes_nothing() {
    let mut rig = Rig::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut active = rig.connect(listener.local_addr().unwrap());
    wait_for("joined", || rig.is_joined(&active));
    active.write_all(&[1; 300]).unwrap();
    assert_eq!(rig.unread_of(&active), 0);
    let _passive = listener.accept().unwrap().0;
    assert_eq!(rig.unread_of(&active), 300);
}
