//! Distributes connections evenly over the workers.
//!
//! The kernel chooses a worker's socket by a hash of the addresses, which often gives most of a few connections to one
//! worker. A worker that accepts a connection while another has fewer open hands it to that worker.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sluice_net::listener::{Admission, ListenerState};
use tokio::sync::mpsc;

/// A worker may have more connections than another by one eighth of the other's: with many connections, one more or
/// less does not matter, and a hand-over has to wake a worker.
const ONE_MORE_OF: usize = 8;

/// One worker's connections, on a separate cache line.
#[repr(align(64))]
#[derive(Default)]
struct Open(AtomicUsize);

/// State shared by all workers.
struct All {
    open: Vec<Open>,
    doors: Vec<mpsc::UnboundedSender<Accepted>>,
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
        self.all.open[self.index].0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The parts of `workers` workers.
pub fn shares(workers: usize) -> Vec<(Share, Handed)> {
    let (doors, handed): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::unbounded_channel()).unzip();
    let all = Arc::new(All { open: doors.iter().map(|_| Open::default()).collect(), doors });
    let share = |(index, handed)| (Share { all: Arc::clone(&all), index }, handed);
    handed.into_iter().enumerate().map(share).collect()
}

impl Share {
    /// A place on this worker, regardless of the others.
    pub(super) fn keep(&self, admission: Admission) -> OpenCount {
        self.place(self.index, admission)
    }

    /// A place where one more connection weighs least: on this worker, unless another has clearly fewer.
    pub(super) fn choose(&self, admission: Admission) -> OpenCount {
        let open = |index: usize| self.all.open[index].0.load(Ordering::Relaxed);
        let own = open(self.index);
        let least = (0..self.all.open.len()).map(|index| (open(index), index)).min();
        let index = match least {
            Some((least, index)) if least + least / ONE_MORE_OF < own => index,
            _ => self.index,
        };
        self.place(index, admission)
    }

    fn place(&self, index: usize, admission: Admission) -> OpenCount {
        self.all.open[index].0.fetch_add(1, Ordering::Relaxed);
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
        self.all.open[index].0.fetch_add(1, Ordering::Relaxed);
        self.all.open[std::mem::replace(&mut self.index, index)].0.fetch_sub(1, Ordering::Relaxed);
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
        let place = share.choose(state.admit().unwrap());
        let client = SocketAddr::from(([127, 0, 0, 1], 0));
        share.hand(Accepted { state: Arc::clone(state), socket, client, place })
    }

    fn open(share: &Share) -> Vec<usize> {
        share.all.open.iter().map(|open| open.0.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn few_connections_are_spread_evenly() {
        let state = listener();
        let mut workers = shares(3);
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
        let workers = shares(2);
        let [(first, _), (second, _)] = &workers[..] else { unreachable!() };
        let _theirs: Vec<_> = (0..80).map(|_| second.keep(state.admit().unwrap())).collect();
        let _ours: Vec<_> = (0..90).map(|_| first.keep(state.admit().unwrap())).collect();
        let kept = accept(first, &state);
        assert!(kept.is_some());
        assert!(accept(first, &state).is_none(), "91 are more than 80 and an eighth");
        assert_eq!(open(first), [91, 81]);
    }

    #[test]
    fn a_draining_worker_gets_no_connections() {
        let state = listener();
        let mut workers = shares(2);
        workers[1].1.close();
        let kept: Vec<_> = (0..4).filter_map(|_| accept(&workers[0].0, &state)).collect();
        assert_eq!((kept.len(), open(&workers[0].0)), (4, vec![4, 0]));
        drop(kept);
        assert_eq!(open(&workers[0].0), [0, 0]);
    }
}
