//! Distributes connections evenly over the workers.
//!
//! A program in the kernel gives each connection to the worker with the fewest, if it may be used. Without it, the kernel
//! chooses a worker's socket by a hash of the addresses, which often gives most of a few connections to one worker. Then
//! a worker that accepts a connection while another has fewer open hands it to that worker.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sluice_ebpf::accept::Load;
use sluice_kernel::accept::Chooser;
use sluice_net::listener::{Admission, ListenerState};
use tokio::sync::mpsc;

/// A worker may have more connections than another by one eighth of the other's: with many connections, one more or
/// less does not matter, and a hand-over has to wake a worker.
const ONE_MORE_OF: u32 = 8;

/// Where the kernel has chosen, a worker seldom has this many times the connections of another (1 of 3 000 new ones was
/// handed over in a measurement). A difference up to [`CHOSEN_FEW`] means nothing.
const CHOSEN_TIMES: u32 = 2;
const CHOSEN_FEW: u32 = 16;

/// State shared by all workers.
struct All {
    loads: Loads,
    doors: Vec<mpsc::UnboundedSender<Accepted>>,
}

/// The connections of each worker.
enum Loads {
    Own(Vec<Load>),
    /// The kernel reads them.
    Shared(Arc<Chooser>),
}

/// A worker's part in it.
pub struct Share {
    all: Arc<All>,
    index: usize,
}

/// Connections handed to a worker. Limited by the number of connections that listeners may have open.
pub(crate) type Handed = mpsc::UnboundedReceiver<Accepted>;

/// An accepted connection, before it is known where it will be served.
pub struct Accepted {
    pub(super) state: Arc<ListenerState>,
    pub(super) socket: OwnedFd,
    pub(super) client: SocketAddr,
    pub(super) place: OpenCount,
}

/// One connection in the counts of its listener and of its worker; dropping it decrements them.
pub(crate) struct OpenCount {
    _admission: Admission,
    all: Arc<All>,
    index: usize,
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        self.all.load(self.index).subtract();
    }
}

impl All {
    fn load(&self, index: usize) -> &Load {
        match &self.loads {
            Loads::Own(loads) => &loads[index],
            Loads::Shared(chooser) => &chooser.loads()[index],
        }
    }
}

/// The parts of `workers` workers. `chooser` has been loaded for as many.
pub fn shares(workers: usize, chooser: Option<Arc<Chooser>>) -> Vec<(Share, Handed)> {
    let (doors, handed): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::unbounded_channel()).unzip();
    let own = || Loads::Own(doors.iter().map(|_| Load::default()).collect());
    let all = Arc::new(All { loads: chooser.map_or_else(own, Loads::Shared), doors });
    let share = |(index, handed)| (Share { all: Arc::clone(&all), index }, handed);
    handed.into_iter().enumerate().map(share).collect()
}

impl Share {
    /// A place on this worker, regardless of the others.
    pub(super) fn keep(&self, admission: Admission) -> OpenCount {
        self.place(self.index, admission)
    }

    /// A place where one more connection weighs least: on this worker, unless another has clearly fewer. `is_chosen`:
    /// whether the kernel has already chosen this worker.
    pub(super) fn choose(&self, admission: Admission, is_chosen: bool) -> OpenCount {
        let weight = |index: usize| self.all.load(index).weight();
        let own = weight(self.index);
        let least = (0..self.all.doors.len()).map(|index| (weight(index), index)).min();
        let enough = |least: u32| match is_chosen {
            true => least.saturating_mul(CHOSEN_TIMES).saturating_add(CHOSEN_FEW),
            false => least + least / ONE_MORE_OF,
        };
        let index = match least {
            Some((least, index)) if enough(least) < own => index,
            _ => self.index,
        };
        self.place(index, admission)
    }

    /// A connection has arrived that the kernel had chosen this worker for.
    pub(super) fn take(&self) {
        self.all.load(self.index).take();
    }

    /// Now and then: connections that the kernel has chosen this worker for may never arrive.
    pub(super) fn tick(&self) {
        self.all.load(self.index).forget_half();
    }

    fn place(&self, index: usize, admission: Admission) -> OpenCount {
        self.all.load(index).add();
        OpenCount { _admission: admission, all: Arc::clone(&self.all), index }
    }

    /// Hands a connection to the worker of its place. Returns it, with a place on this worker, if it is to be served
    /// here: because its place is here, or because the other worker drains.
    pub(super) fn hand(&self, accepted: Accepted) -> Option<Accepted> {
        if accepted.place.index == self.index {
            return Some(accepted);
        }
        let mpsc::error::SendError(mut back) = self.all.doors[accepted.place.index].send(accepted).err()?;
        back.place.move_to(self.index);
        Some(back)
    }
}

impl OpenCount {
    fn move_to(&mut self, index: usize) {
        self.all.load(index).add();
        self.all.load(std::mem::replace(&mut self.index, index)).subtract();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;

    use sluice_config as config;

    use super::*;

    fn listener() -> Arc<ListenerState> {
        let text = config::short_form("127.0.0.1:1", &["127.0.0.1:2".to_owned()]);
        let config = config::parse("c.yaml", &text, &[]).unwrap();
        Arc::new(ListenerState::new(config.listeners[0].clone()))
    }

    fn accept(share: &Share, state: &Arc<ListenerState>) -> Option<Accepted> {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap().into();
        let place = share.choose(state.admit().unwrap(), false);
        let client = SocketAddr::from(([127, 0, 0, 1], 0));
        share.hand(Accepted { state: Arc::clone(state), socket, client, place })
    }

    fn open(share: &Share) -> Vec<u32> {
        (0..share.all.doors.len()).map(|index| share.all.load(index).weight()).collect()
    }

    #[test]
    fn few_connections_are_spread_evenly() {
        let state = listener();
        let mut workers = shares(3, None);
        let kept: Vec<_> = (0..9).filter_map(|_| accept(&workers[0].0, &state)).collect();
        assert_eq!((kept.len(), open(&workers[0].0)), (3, vec![3, 3, 3]));
        let handed: Vec<_> = std::iter::from_fn(|| workers[2].1.try_recv().ok()).collect();
        assert_eq!(handed.len(), 3);
        drop((kept, handed));
        assert_eq!(open(&workers[1].0), [0, 3, 0]);
    }

    #[test]
    fn with_many_connections_only_a_clear_difference_counts() {
        let state = listener();
        let workers = shares(2, None);
        let [(first, _), (second, _)] = &workers[..] else { unreachable!() };
        let _theirs: Vec<_> = (0..80).map(|_| second.keep(state.admit().unwrap())).collect();
        let _ours: Vec<_> = (0..90).map(|_| first.keep(state.admit().unwrap())).collect();
        let kept = accept(first, &state);
        assert!(kept.is_some());
        assert!(accept(first, &state).is_none(), "91 are more than 80 and an eighth");
        assert_eq!(open(first), [91, 81]);
    }

    #[test]
    fn connections_that_the_kernel_has_placed_stay() {
        let state = listener();
        let workers = shares(2, None);
        let (share, _) = &workers[0];
        (0..30).for_each(|at| share.all.load(at % 2).give());
        let kept: Vec<_> = (0..15)
            .map(|_| {
                share.take();
                share.choose(state.admit().unwrap(), true)
            })
            .collect();
        assert!(
            kept.iter().all(|place| place.index == 0),
            "the other 15 are on their way to the other worker"
        );
        assert_eq!(open(share), [15, 15]);
        (0..4).for_each(|_| share.tick());
        workers[1].0.tick();
        assert_eq!(open(share), [15, 7], "half of those that do not arrive are forgotten");
        let more: Vec<_> = (0..60).map(|_| share.choose(state.admit().unwrap(), true)).collect();
        assert!(more.iter().any(|place| place.index == 1), "the sockets are not in the expected order");
    }

    #[test]
    fn a_draining_worker_gets_no_connections() {
        let state = listener();
        let mut workers = shares(2, None);
        workers[1].1.close();
        let kept: Vec<_> = (0..4).filter_map(|_| accept(&workers[0].0, &state)).collect();
        assert_eq!((kept.len(), open(&workers[0].0)), (4, vec![4, 0]));
        drop(kept);
        assert_eq!(open(&workers[0].0), [0, 0]);
    }
}
