//! Where the tested connections come from, and what is known about them.

use std::fmt;
use std::net::TcpStream;
use std::rc::Rc;

use sluice_ebpf::Counter;

use super::trial::{Found, refused};
use super::wait::Deadline;
use crate::program::Limits;

/// Creates connections.
pub(super) trait Pairs {
    /// A new connection, joined if `asked`.
    fn connect(&mut self, asked: bool, deadline: Deadline) -> Result<Pair, Found>;

    /// Whether the kernel has joined its ends.
    fn is_joined(&self, pair: &Pair) -> Result<bool, Found>;

    /// The programs' counters; `None` if nothing is ever joined and only the bytes matter.
    fn counts(&self) -> Result<Option<Counts>, Found>;

    /// The limits that the programs were loaded with.
    fn limits(&self) -> Limits;
}

/// The two ends of a connection. Neither blocks, and neither delays small messages.
pub(super) struct Pair {
    /// The end that connected, like sluice.
    pub(super) active: Rc<TcpStream>,
    /// The end that was accepted, like an application.
    pub(super) passive: Rc<TcpStream>,
}

/// A direction. The programs apply different rules in the two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Towards the accepted end.
    Out,
    /// Towards the connecting end.
    Back,
}

impl Way {
    pub(super) const BOTH: [Self; 2] = [Self::Out, Self::Back];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Out => "towards the accepted end",
            Self::Back => "towards the connecting end",
        })
    }
}

impl Pair {
    /// Makes a pair of two connected ends.
    pub(super) fn of(active: TcpStream, passive: TcpStream) -> Result<Self, Found> {
        for end in [&active, &passive] {
            end.set_nonblocking(true).map_err(refused("ioctl"))?;
            // Otherwise a small message through TCP may wait 40 ms for an acknowledgement.
            end.set_nodelay(true).map_err(refused("setsockopt"))?;
        }
        Ok(Self { active: Rc::new(active), passive: Rc::new(passive) })
    }

    /// The sender and the receiver.
    pub(super) fn ends(&self, way: Way) -> (&Rc<TcpStream>, &Rc<TcpStream>) {
        match way {
            Way::Out => (&self.active, &self.passive),
            Way::Back => (&self.passive, &self.active),
        }
    }
}

/// The programs' counters at one moment, or their growth.
#[derive(Clone, Copy)]
pub(super) struct Counts(pub(super) [u64; Counter::COUNT]);

impl Counts {
    pub(super) fn of(&self, counter: Counter) -> u64 {
        self.0.get(counter as usize).copied().unwrap_or(0)
    }

    pub(super) fn since(&self, before: &Self) -> Self {
        let mut grown = self.0;
        for (now, then) in grown.iter_mut().zip(before.0) {
            *now = now.saturating_sub(then);
        }
        Self(grown)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (counter, count) in Counter::ALL.iter().zip(self.0).filter(|(_, count)| *count > 0) {
            write!(f, "{comma}{} {count}", counter.name())?;
            comma = ", ";
        }
        if comma.is_empty() { f.write_str("nothing") } else { Ok(()) }
    }
}
