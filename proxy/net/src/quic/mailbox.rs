//! Datagrams that reached another worker than the one that has their connection.

use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use quinn_proto::EcnCodepoint;
use tokio::sync::mpsc;

use super::process::QuicProcess;

/// Datagrams that may wait for a worker. Beyond that they are lost, as on a network.
const WAITING_MAX: usize = 1024;

/// A received datagram.
#[derive(Clone)]
pub struct Datagram {
    /// Its sender.
    pub(super) remote: SocketAddr,
    /// The address that it was sent to.
    pub(super) local: Option<IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) bytes: BytesMut,
}

/// One worker's own mailbox of a listener, and those of all workers.
pub struct Mailboxes {
    /// The listener, as other processes know it.
    pub(super) key: u64,
    pub(super) all: Vec<mpsc::Sender<Datagram>>,
    pub(super) own: mpsc::Receiver<Datagram>,
}

/// The mailboxes of the listener with this configured address, for each worker.
pub fn mailboxes(address: &str, workers: usize) -> Vec<Mailboxes> {
    let (all, owns): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel(WAITING_MAX)).unzip();
    let process = QuicProcess::this();
    let key = process.keys().name(address.as_bytes());
    for (worker, mailbox) in (0..=u8::MAX).zip(&all) {
        process.register(key, worker, mailbox.clone());
    }
    owns.into_iter().map(|own| Mailboxes { key, all: all.clone(), own }).collect()
}
