//! How a worker opens connections to endpoints, and where it keeps them.

use std::cell::RefCell;
use std::rc::Rc;

use sluice_core::metrics::{Counted, Event, WorkerRecorder};

use super::{Connector, Pool};
use crate::bypass::{Joiner, JoinerConfig};
use crate::direct::Direct;

/// One worker's means to reach endpoints.
pub(crate) struct Dialer {
    pub(super) connector: Connector,
    pub(crate) pool: Pool,
    joiner: Option<Rc<Joiner>>,
    direct: Option<Direct>,
    random: RefCell<fastrand::Rng>,
    metrics: Rc<WorkerRecorder>,
}

impl Dialer {
    /// `alone` if there is no other worker to share connections with; with a `seat`, connections are joined.
    pub(crate) fn new(
        connector: Connector,
        alone: bool,
        seat: Option<JoinerConfig>,
        metrics: Rc<WorkerRecorder>,
    ) -> Self {
        let joiner = seat.map(|seat| Rc::new(Joiner::new(seat, Rc::clone(&metrics))));
        let pool = Pool::new(alone, joiner.clone(), Rc::clone(&metrics));
        Self { connector, pool, joiner, direct: None, random: RefCell::default(), metrics }
    }

    /// Sets up direct return.
    pub(crate) fn set_direct(&mut self, direct: Option<Direct>) {
        self.direct = direct;
    }

    /// The joiner, if connections are joined.
    pub(crate) fn joiner(&self) -> Option<&Joiner> {
        self.joiner.as_deref()
    }

    /// Direct return, if it is used.
    pub(crate) fn direct(&self) -> Option<&Direct> {
        self.direct.as_ref()
    }

    pub(crate) fn metrics(&self) -> &Rc<WorkerRecorder> {
        &self.metrics
    }

    /// Counts `begun` now and `ended` when the guard is dropped.
    pub(super) fn count_while(&self, begun: Event, ended: Event) -> Counted {
        Counted::new(&self.metrics, begun, ended)
    }

    /// Lends the source of random numbers for picking endpoints.
    pub(super) fn with_random<T>(&self, f: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        f(&mut self.random.borrow_mut())
    }
}
