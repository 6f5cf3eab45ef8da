//! A worker's thread with one ring: it accepts, hands connections to other workers, serves, ticks and drains.

mod accept;
mod datagrams;
mod run;
mod share;

use std::sync::Arc;

use sluice_net::listener::{Bound, DatagramSockets, Listening};

pub use run::{WorkerControl, run};
pub use share::shares;

/// The stages of the workers, set by the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Accept and serve.
    Serve,
    /// As before, but each response ends its connection: the clients should find another sluice before the drain.
    Announce,
    /// Accept no more, finish what is under way.
    Drain,
    /// As [`Stage::Drain`], but waiting connections belong to another process, which has the same sockets.
    HandOver,
    /// The drain took too long, and the process ends: tell the clients that the kernel does not tell, then let go of
    /// the channel of the stages.
    End,
}

/// A command of the control plane to one worker.
pub enum Command {
    /// Accept from another listener.
    Listen(Bound),
    /// Stop accepting from a closed listener, and end its connections after what is under way.
    Close(Arc<Listening>),
    /// Serve HTTP/3 on a listener that is served already.
    ServeDatagrams(Arc<Listening>, DatagramSockets),
    /// Accept no more HTTP/3 on a listener.
    CloseDatagrams(Arc<Listening>),
}
