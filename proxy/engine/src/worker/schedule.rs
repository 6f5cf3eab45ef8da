//! When and where a worker's thread runs, and whether it serves for all or rests.

use std::cell::Cell;
use std::rc::Rc;

use sluice_core::metrics::{Event, WorkerRecorder};

use super::gather::Gather;
use super::pace::Pace;
use super::place::{self, Place};

/// The decisions about one worker's thread; each is missing where it is not to be made.
#[derive(Default)]
pub(super) struct Schedule {
    pace: Option<Pace>,
    place: Option<Place>,
    gather: Option<Gather>,
    /// The number of exchanges at the last tick.
    exchanges: Cell<u64>,
    rests: Cell<bool>,
}

impl Schedule {
    /// See [`super::Worker::with_pace`].
    pub(super) fn with_pace(self, is_batch: bool, metrics: &Rc<WorkerRecorder>) -> Self {
        let pace = if is_batch { Pace::begin(metrics) } else { None };
        Self { pace, ..self }
    }

    /// See [`super::Worker::with_place`].
    pub(super) fn with_place(self, worker: usize, workers: usize, metrics: &Rc<WorkerRecorder>) -> Self {
        let place = Place::of(worker, workers, metrics);
        let is_first = place.is_some() && worker == 0;
        let gather = if is_first { Gather::of(workers, metrics) } else { None };
        Self { place, gather, ..self }
    }

    /// Looks how late the worker wakes while it is busy, if that matters.
    pub(super) async fn watch(&self) {
        if let Some(pace) = &self.pace {
            pace.watch().await;
        }
    }

    /// Counts an exchange that waited in the queue of a cluster.
    pub(super) fn count_queued(&self) {
        if let Some(gather) = &self.gather {
            gather.count_queued();
        }
    }

    /// Whether this worker is to serve all connections, as far as the last tick tells.
    pub(super) fn gathers(&self) -> bool {
        self.gather.as_ref().is_some_and(Gather::is_on)
    }

    /// Records whether the worker rests.
    pub(super) fn rest(&self, rests: bool, metrics: &WorkerRecorder) {
        if self.rests.replace(rests) != rests {
            metrics.count(if rests { Event::RestBegun } else { Event::RestEnded });
        }
    }

    /// Looks at the load since the last tick. Call it on the worker's thread.
    pub(super) fn tick(&self, connections: usize, metrics: &WorkerRecorder) {
        if let Some(pace) = &self.pace {
            pace.tick(self.gathers());
        }
        let is_batch = self.pace.as_ref().is_some_and(Pace::is_batch);
        if let Some(gather) = &self.gather {
            gather.tick(metrics, is_batch);
        }
        let now = metrics.exchanges();
        let exchanges = now.saturating_sub(self.exchanges.replace(now));
        if let Some(place) = &self.place {
            place.tick(place::Load { exchanges, connections, may_stay: is_batch && !self.gathers() });
        }
    }
}
