//! Names that clients ask for and no certificate is for: told to whoever may get one. No handshake waits for it.

use tokio::sync::mpsc;

/// A name that a client has asked for.
#[derive(Debug)]
pub struct Wanted {
    /// Name of the listener.
    pub listener: String,
    /// In lower case.
    pub name: String,
}

/// Where a listener's store tells such names.
#[derive(Debug)]
pub struct Demand {
    listener: String,
    wants: mpsc::Sender<Wanted>,
}

impl Demand {
    /// The names asked for on one listener, sent to whoever has certificates issued.
    pub fn new(listener: String, wants: mpsc::Sender<Wanted>) -> Self {
        Self { listener, wants }
    }

    /// Tells it. Where too many wait it is dropped: the next client asks again.
    pub(super) fn want(&self, name: &str) {
        // Full ones are not worth the copies.
        if let Ok(place) = self.wants.try_reserve() {
            place.send(Wanted { listener: self.listener.clone(), name: name.to_ascii_lowercase() });
        }
    }
}
