//! sluice can see what an application has not read.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};

use crate::support::{Rig, wait_for};

#[test]
#[ignore = "needs root and BPF"]
fn unread_bytes_are_reported_until_they_are_read() {
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
fn connections_that_are_not_accepted_count_as_read() {
    let mut rig = Rig::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut active = rig.connect(listener.local_addr().unwrap());
    wait_for("joined", || rig.is_joined(&active));
    active.write_all(&[1; 300]).unwrap();
    assert_eq!(rig.unread_of(&active), 0);
    let _passive = listener.accept().unwrap().0;
    assert_eq!(rig.unread_of(&active), 300);
}
