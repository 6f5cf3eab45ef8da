//! A worker's thread, with one ring: it accepts, hands connections on to others, serves, ticks and drains.

mod accept;
mod run;
mod share;

use std::sync::Arc;

use sluice_net::listener::{Bound, Listening};

pub use run::{WorkerControl, run};
pub use share::shares;

/// What the control plane asks of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Accept and serve.
    Serve,
    /// Accept no more, end what is under way.
    Drain,
    /// The same, but what waits to be accepted is another process's, which has the same sockets.
    HandOver,
}

/// What the control plane has one worker do.
pub enum Command {
    /// Accept from another listener.
    Listen(Bound),
    /// Accept no more from one that has been closed, and end its connections after what is under way.
    Close(Arc<Listening>),
}
