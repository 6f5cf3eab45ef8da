//! Distributes connections evenly over the workers, or gives all to the first one.
//!
//! A program in the kernel gives each connection to the worker with the fewest, if it may be used. Without it, the kernel
//! chooses a worker's socket by a hash of the addresses, which often gives most of a few connections to one worker. Then
//! a worker that accepts a connection while another has fewer open hands it to that worker.
//!
//! While one worker serves for all, the others rest: they weigh more than it does. Their connections move to it between
//! two requests, and back to the others afterwards.

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_ebpf::accept::Load;
use sluice_kernel::accept::Chooser;
use sluice_net::listener::{Admission, ListenerState};
use tokio::sync::mpsc;

use crate::connection::Past;

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
    /// Whether all workers but the first rest.
    rest: AtomicBool,
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
    /// Whether some of its connections are to move to other workers.
    levels: Cell<bool>,
}

/// Connections handed to a worker. Limited by the number of connections that listeners may have open.
pub(crate) type Handed = mpsc::UnboundedReceiver<Accepted>;

/// An accepted connection, before it is known where it will be served.
pub struct Accepted {
    pub(super) state: Arc<ListenerState>,
    pub(super) socket: OwnedFd,
    pub(super) client: SocketAddr,
    pub(super) place: OpenCount,
    pub(super) past: Past,
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
    let all =
        Arc::new(All { loads: chooser.map_or_else(own, Loads::Shared), rest: AtomicBool::new(false), doors });
    let share = |(index, handed)| (Share { all: Arc::clone(&all), index, levels: Cell::new(false) }, handed);
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
        let index = self.lighter(0, if is_chosen { much } else { some }).unwrap_or(self.index);
        self.place(index, admission)
    }

    /// Chooses again for a connection of this worker, which is to leave it.
    pub(super) fn choose_again(&self, place: &mut OpenCount) {
        match self.lighter(1, some) {
            Some(index) => place.move_to(index),
            None => self.levels.set(false),
        }
    }

    /// The worker with the least weight, if this one has more than `enough` of that without `leaving` connections.
    fn lighter(&self, leaving: u32, enough: impl Fn(u32) -> u32) -> Option<usize> {
        let weight = |index: usize| self.all.load(index).weight();
        let (least, index) = (0..self.all.doors.len()).map(|index| (weight(index), index)).min()?;
        (enough(least) < weight(self.index).saturating_sub(leaving)).then_some(index)
    }

    /// Whether connections are to leave this worker now.
    pub(super) fn is_uneven(&self) -> bool {
        let is_uneven = self.lighter(1, if self.levels.get() { some } else { much }).is_some();
        self.levels.set(is_uneven);
        is_uneven
    }

    /// Lets the other workers rest, or ends that. Only the first worker's has an effect.
    pub(super) fn gather(&self, gathers: bool) {
        if self.index > 0 || self.all.rest.swap(gathers, Ordering::Relaxed) == gathers {
            return;
        }
        for other in 1..self.all.doors.len() {
            let load = self.all.load(other);
            if gathers { load.begin_to_rest() } else { load.end_rest() }
        }
        self.levels.set(!gathers);
    }

    /// Whether this worker rests.
    pub(super) fn rests(&self) -> bool {
        self.index > 0 && self.all.rest.load(Ordering::Relaxed)
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

/// How much heavier than another a worker may be.
fn some(least: u32) -> u32 {
    least.saturating_add(least / ONE_MORE_OF)
}

/// The same where the difference is no accident of the kernel's choice.
fn much(least: u32) -> u32 {
    least.saturating_mul(CHOSEN_TIMES).saturating_add(CHOSEN_FEW)
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
        share.hand(Accepted { state: Arc::clone(state), socket, client, place, past: Past::default() })
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
    fn first_worker_gets_all_connections_while_the_others_rest_and_gives_them_back() {
        let state = listener();
        let workers = shares(3, None);
        let shares: Vec<_> = workers.iter().map(|(share, _)| share).collect();
        let uneven = || shares.iter().map(|share| share.is_uneven()).collect::<Vec<_>>();
        let mut places: Vec<_> = (0..9).map(|at| shares[at % 3].keep(state.admit().unwrap())).collect();
        assert_eq!(uneven(), [false; 3]);
        // Only the first worker decides.
        shares[1].gather(true);
        assert_eq!(uneven(), [false; 3]);
        (0..2).for_each(|_| shares[0].gather(true));
        assert_eq!((uneven(), shares[0].rests(), shares[2].rests()), (vec![false, true, true], false, true));
        assert_eq!(shares[2].choose(state.admit().unwrap(), true).index, 0);
        for place in places.iter_mut().filter(|place| place.index > 0) {
            shares[place.index].choose_again(place);
        }
        assert!(places.iter().all(|place| place.index == 0));
        shares[0].gather(false);
        assert_eq!((uneven(), shares[2].rests()), (vec![true, false, false], false));
        for place in &mut places {
            shares[0].choose_again(place);
        }
        assert_eq!(open(shares[0]), [3, 3, 3]);
        assert_eq!(uneven(), [false; 3]);
    }

    #[test]
    fn one_of_many_connections_does_not_move_only_because_it_is_one_more() {
        let state = listener();
        let workers = shares(2, None);
        let (share, _) = &workers[0];
        let _places: Vec<_> = (0..CHOSEN_FEW + 1).map(|_| share.keep(state.admit().unwrap())).collect();
        assert!(!share.is_uneven());
        let _more = share.keep(state.admit().unwrap());
        assert!(share.is_uneven(), "the other has none");
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
