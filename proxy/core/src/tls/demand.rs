//! Reports names that clients request and that no certificate covers to the certificate issuer. No handshake waits for
//! it.

use tokio::sync::mpsc;

/// A name that a client has requested.
#[derive(Debug)]
pub struct Wanted {
    /// Name of the listener.
    pub listener: String,
    /// The name, in lower case.
    pub name: String,
}

/// Where a listener's store reports such names.
#[derive(Debug)]
pub struct Demand {
    listener: String,
    wants: mpsc::Sender<Wanted>,
}

impl Demand {
    /// Reports the names requested on one listener to the receiver of `wants`, which gets certificates issued.
    pub fn new(listener: String, wants: mpsc::Sender<Wanted>) -> Self {
        Self { listener, wants }
    }

    /// Reports a name. If too many are waiting, it is dropped: the next client will request it again.
    pub(super) fn want(&self, name: &str) {
        // If the queue is full, the copies are not worth making.
        if let Ok(place) = self.wants.try_reserve() {
            place.send(Wanted { listener: self.listener.clone(), name: name.to_ascii_lowercase() });
        }
    }
}
