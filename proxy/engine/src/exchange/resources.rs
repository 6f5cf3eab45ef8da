//! The resources that exchanges use from their worker.

use std::cell::Cell;

use sluice_net::buffers::Buffers;

use crate::compress::Compressors;
use crate::files::FileStore;
use crate::spool::Spool;
use crate::upstream::Dialer;

/// What the exchanges of one worker share.
pub(crate) struct Resources {
    pub(crate) dialer: Dialer,
    pub(crate) spool: Spool,
    pub(crate) buffers: Buffers,
    /// Files that routes respond with.
    pub(crate) files: FileStore,
    /// Responses that are being encoded.
    pub(crate) compressors: Compressors,
    draining: Cell<bool>,
    /// Whether responses end their connections.
    ends_connections: Cell<bool>,
}

impl Resources {
    pub(crate) fn new(dialer: Dialer, spool: Spool, buffers: Buffers) -> Self {
        Self {
            dialer,
            spool,
            buffers,
            files: FileStore::default(),
            compressors: Compressors::new(),
            draining: Cell::new(false),
            ends_connections: Cell::new(false),
        }
    }

    /// From now on, connections end with the current response.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.ends_connections.set(true);
    }

    /// The same, while more are accepted. Returns whether that is new.
    pub(crate) fn announce_drain(&self) -> bool {
        !self.ends_connections.replace(true)
    }

    /// Whether responses end their connections.
    pub(crate) fn ends_connections(&self) -> bool {
        self.ends_connections.get()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }
}
