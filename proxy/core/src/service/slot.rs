//! The targets of one deploy with the count of their exchanges, and the gate in front of a service. Shared by the
//! control thread, which drains, and the workers.
//!
//! A request that uses an old snapshot must not reach drained targets. An exchange therefore first counts itself and
//! then checks the mark; a drain first sets the mark and then reads the count. At least one of the two sees the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::model::{Pause, PauseState};
use crate::cluster::Cluster;

/// How often a drain checks whether all exchanges have ended.
const DRAIN_TICK: Duration = Duration::from_millis(10);

/// The targets of one deploy.
pub struct Slot {
    /// The targets that take every request.
    pub(crate) writers: Arc<Cluster>,
    /// The targets that take reads only.
    pub(crate) readers: Option<Arc<Cluster>>,
    /// Exchanges under way.
    entered: AtomicUsize,
    /// Whether another deploy has replaced it.
    replaced: AtomicBool,
    /// The number of drains so far.
    drains: AtomicU64,
    ended: watch::Sender<Ended>,
}

/// The last drain that ended exchanges. A drain ends only exchanges that started before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ended {
    /// The last drain that ended tunnels.
    tunnels: u64,
    /// The last drain that ended requests.
    requests: u64,
}

/// An exchange's place in a slot; the exchange is under way as long as this value exists.
pub struct Entered {
    slot: Arc<Slot>,
    drain: u64,
}

impl Slot {
    /// A slot of these targets, with no request under way.
    pub fn new(writers: Arc<Cluster>, readers: Option<Arc<Cluster>>) -> Self {
        Self {
            writers,
            readers,
            entered: AtomicUsize::new(0),
            replaced: AtomicBool::new(false),
            drains: AtomicU64::new(0),
            ended: watch::Sender::new(Ended::default()),
        }
    }

    /// Its clusters.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<Cluster>> {
        std::iter::once(&self.writers).chain(&self.readers)
    }

    /// Starts an exchange. Returns `None` if the slot was replaced or the gate closed after the request was routed, so
    /// that it has to be routed again.
    pub fn enter(self: &Arc<Self>, gate: &Gate) -> Option<Entered> {
        self.entered.fetch_add(1, SeqCst);
        let entered = Entered { slot: Arc::clone(self), drain: self.drains.load(SeqCst) };
        (!self.replaced.load(SeqCst) && gate.is_open()).then_some(entered)
    }

    /// Stops accepting exchanges.
    pub fn replace(&self) {
        self.replaced.store(true, SeqCst);
    }

    /// Exchanges under way.
    pub(crate) fn under_way(&self) -> usize {
        self.entered.load(SeqCst)
    }

    /// Ends tunnels at once, as they may last long, and other exchanges after `patience`. Returns true if all of them
    /// finished in time.
    pub async fn drain(&self, patience: Duration) -> bool {
        let drain = self.drains.fetch_add(1, SeqCst) + 1;
        self.ended.send_modify(|ended| ended.tunnels = ended.tunnels.max(drain));
        let deadline = Instant::now() + patience;
        let idle = async {
            while self.under_way() > 0 {
                tokio::time::sleep(DRAIN_TICK).await;
            }
        };
        let idle = timeout_at(deadline, idle).await.is_ok();
        self.ended.send_modify(|ended| ended.requests = ended.requests.max(drain));
        idle
    }
}

impl Entered {
    /// Resolves when a drain's patience with this exchange has run out.
    pub async fn cut(&self) {
        self.until(|ended| ended.requests).await;
    }

    /// Resolves when a drain has started, which ends tunnels.
    pub async fn drained(&self) {
        self.until(|ended| ended.tunnels).await;
    }

    async fn until(&self, which: impl Fn(&Ended) -> u64) {
        let mut ended = self.slot.ended.subscribe();
        // The sender is in the slot, which `self` keeps alive.
        let _ = ended.wait_for(|ended| which(ended) > self.drain).await;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.slot.entered.fetch_sub(1, SeqCst);
    }
}

/// Whether a service's requests are served, paused or rejected. All snapshots of a service share one gate.
pub struct Gate(watch::Sender<Pause>);

impl Gate {
    /// A gate in this state.
    pub fn new(pause: Pause) -> Self {
        Self(watch::Sender::new(pause))
    }

    /// Opens or closes it; waiting requests check it again.
    pub fn set(&self, pause: Pause) {
        self.0.send_replace(pause);
    }

    pub(crate) fn now(&self) -> Pause {
        self.0.borrow().clone()
    }

    fn is_open(&self) -> bool {
        self.0.borrow().state == PauseState::Running
    }

    /// Waits for the end of a pause; false if it lasts longer than `patience`.
    pub async fn opened(&self, patience: Duration) -> bool {
        let mut pause = self.0.subscribe();
        let open = pause.wait_for(|pause| pause.state != PauseState::Paused);
        tokio::time::timeout(patience, open).await.is_ok()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use sluice_config as config;

    use super::*;
    use crate::service::duration::GoDuration;

    const LONG: Duration = Duration::from_secs(1000);

    fn slot() -> Arc<Slot> {
        Arc::new(Slot::new(Arc::new(Cluster::new("c", config::Cluster::default(), Vec::new())), None))
    }

    fn open() -> Gate {
        Gate::new(Pause::default())
    }

    #[test]
    fn no_exchange_enters_a_replaced_slot_or_a_closed_gate() {
        let slot = slot();
        let entered = slot.enter(&open()).unwrap();
        assert_eq!(slot.under_way(), 1);
        assert!(slot.enter(&Gate::new(Pause::paused(GoDuration::from_secs(1)))).is_none());
        assert!(slot.enter(&Gate::new(Pause::stopped(String::new()))).is_none());
        slot.replace();
        assert!(slot.enter(&open()).is_none());
        assert_eq!(slot.under_way(), 1);
        drop(entered);
        assert_eq!(slot.under_way(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_requests_and_ends_tunnels() {
        let slot = slot();
        let (request, tunnel) = (slot.enter(&open()).unwrap(), slot.enter(&open()).unwrap());
        let tunnel = tokio::spawn(async move { tunnel.drained().await });
        let request = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(request);
        });
        assert!(slot.drain(LONG).await);
        tunnel.await.unwrap();
        request.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_only_exchanges_that_started_before_it() {
        let slot = slot();
        let old = slot.enter(&open()).unwrap();
        assert!(!slot.drain(Duration::from_secs(1)).await);
        old.cut().await;
        let new = slot.enter(&open()).unwrap();
        assert!(tokio::time::timeout(LONG, new.cut()).await.is_err());
        assert!(tokio::time::timeout(LONG, new.drained()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_until_the_gate_opens_or_its_patience_ends() {
        let gate = Arc::new(Gate::new(Pause::paused(GoDuration::from_secs(1))));
        assert!(!gate.opened(Duration::from_secs(1)).await);
        let waiting = Arc::clone(&gate);
        let waiting = tokio::spawn(async move { waiting.opened(LONG).await });
        tokio::time::sleep(Duration::from_secs(2)).await;
        gate.set(Pause::stopped("gone".to_owned()));
        assert!(waiting.await.unwrap());
        assert_eq!(gate.now().stop_message, "gone");
    }
}
