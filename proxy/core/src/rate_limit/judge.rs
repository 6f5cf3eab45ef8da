//! A judge outside of this process that all members of a fleet ask, so that a limit is exact.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::RateLimiter;
use super::gcra::Step;

/// Requests that wait for the judge at a time. Beyond it they count here alone.
const WAITING_MAX: usize = 4096;
/// Clients that the judge has still to forget; operators name them one by one.
const FORGOTTEN_MAX: usize = 1024;

/// What is asked of the judge for one request.
#[derive(Debug)]
pub struct RateQuestion {
    /// The name of the limit.
    pub limit: String,
    /// The client's key: the same on all members.
    pub key: u64,
    /// Its rules.
    pub pace: PaceRules,
    /// How long the request waits for it.
    pub patience: Duration,
    /// When that ends.
    pub deadline: Instant,
    /// Clients that this member lets the store remember.
    pub clients_max: usize,
    /// Takes the answer.
    pub answer: oneshot::Sender<Ruling>,
    /// Its place among those that wait.
    _place: OwnedSemaphorePermit,
}

/// What the judge is told.
#[derive(Debug)]
pub enum RateCall {
    /// A request is to be decided.
    Decide(RateQuestion),
    /// What a client has sent is to be forgotten.
    Forget {
        /// The name of the limit.
        limit: String,
        /// The client's key.
        key: u64,
    },
}

/// The rules of a limit, in nanoseconds: see the algorithm in `gcra`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceRules {
    /// Between two requests at the rate.
    pub interval_ns: u64,
    /// How far a client may be ahead of its time, and still be served.
    pub tolerance_ns: u64,
    /// Whether those that are ahead wait.
    pub delays: bool,
}

/// What the judge says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// It is served.
    Serve,
    /// It is served after this long.
    Wait(Duration),
    /// It is refused; one more is possible after this time.
    Refuse(Duration),
}

/// Asks the judge.
pub struct RateJudge {
    calls: mpsc::Sender<RateCall>,
    places: Arc<Semaphore>,
    is_away: AtomicBool,
}

impl RateJudge {
    /// One, and what it is told.
    pub fn new() -> (Self, mpsc::Receiver<RateCall>) {
        let (calls, receiver) = mpsc::channel(WAITING_MAX + FORGOTTEN_MAX);
        let places = Arc::new(Semaphore::new(WAITING_MAX));
        (Self { calls, places, is_away: AtomicBool::new(false) }, receiver)
    }

    /// Says whether it answers. While it does not, no request waits for it.
    pub fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }

    /// Asks about a client by its key; resolves to `None` if it does not answer in time. Dropping the future gives it up, but
    /// it may count.
    pub(super) fn ask(&self, limit: &RateLimiter, key: u64) -> impl Future<Output = Option<Ruling>> + use<> {
        let patience = Duration::from_millis(limit.config.exact_timeout_ms);
        let deadline = Instant::now() + patience;
        let ruling = self.send(limit, key, (patience, deadline));
        async move { timeout_at(deadline, ruling?).await.ok()?.ok() }
    }

    fn send(
        &self,
        limit: &RateLimiter,
        key: u64,
        (patience, deadline): (Duration, Instant),
    ) -> Option<oneshot::Receiver<Ruling>> {
        if self.is_away.load(Ordering::Relaxed) {
            return None;
        }
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let (answer, ruling) = oneshot::channel();
        let question = RateQuestion {
            limit: limit.name.clone(),
            key,
            pace: limit.pace.rules(),
            patience,
            deadline,
            clients_max: limit.config.clients_max,
            answer,
            _place: place,
        };
        self.calls.try_send(RateCall::Decide(question)).ok()?;
        Some(ruling)
    }

    /// Forgets what a client has sent. If the store is away, it does not.
    pub(super) fn forget(&self, limit: &RateLimiter, key: u64) {
        let _ = self.calls.try_send(RateCall::Forget { limit: limit.name.clone(), key });
    }
}

impl From<Step> for Ruling {
    fn from(step: Step) -> Self {
        match step {
            Step::Serve { .. } => Self::Serve,
            Step::Wait { wait, .. } => Self::Wait(Duration::from_nanos(wait)),
            Step::Refuse { after } => Self::Refuse(Duration::from_nanos(after)),
        }
    }
}
