//! How a request is admitted to an endpoint: at once, or after a wait in the cluster's queue.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use super::{Cluster, Endpoint, NoEndpoint, Pick, ServiceSample};
use crate::client::share;
use crate::clock::{now_ms, now_us};
use crate::queue::{Offer, Queue, QueueCounts, Refusal, Waiting};

/// How often a pick is repeated when another worker took the place first.
const RACES_MAX: usize = 4;

/// A request or tunnel under way at an endpoint. Hold it until the response body, or the tunnel, has ended.
pub struct InFlight {
    cluster: Arc<Cluster>,
    endpoint: Arc<Endpoint>,
    kind: Kind,
}

/// What occupies an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request, bounded by `max_in_flight`.
    Request,
    /// A tunnel, bounded by `tunnels_max`.
    Tunnel,
}

/// What a queued request needs for the choice of an endpoint.
pub struct Wants {
    /// The hash of its key, if the cluster balances by a key.
    pub hash: Option<u64>,
    /// Ids of endpoints that were already tried.
    pub exclude: Vec<u32>,
}

/// A cluster's queue.
pub(crate) type ClusterQueue = Queue<Wants, InFlight>;

impl InFlight {
    /// The endpoint where it is counted.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Reports a response, from which an automatic limit is calculated.
    pub fn observe(&self, sample: ServiceSample) {
        if self.endpoint.observe(sample) {
            self.cluster.serve_waiting();
        }
    }

    /// Counts it as a tunnel from now on: the request was upgraded.
    pub fn into_tunnel(mut self) -> Self {
        self.endpoint.turn_into_tunnel();
        self.kind = Kind::Tunnel;
        self.cluster.serve_waiting();
        self
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.endpoint.end(self.kind);
        if self.kind == Kind::Request {
            self.cluster.serve_waiting();
        }
    }
}

impl Cluster {
    /// Picks an endpoint and takes a place there. Does not overtake queued requests.
    ///
    /// # Errors
    /// As [`Cluster::pick`]; [`NoEndpoint::Full`] when the request has to wait.
    pub fn begin(self: &Arc<Self>, mut request: Pick<'_>) -> Result<InFlight, NoEndpoint> {
        if request.kind == Kind::Request && !self.lasting.queue.is_empty() {
            // No place in the queue for a request that no endpoint can serve: it would wait until its timeout.
            self.can_ever_serve(&request)?;
            return Err(NoEndpoint::Full);
        }
        self.take_place(&mut request)
    }

    fn take_place(self: &Arc<Self>, request: &mut Pick<'_>) -> Result<InFlight, NoEndpoint> {
        for _ in 0..RACES_MAX {
            let endpoint = self.pick(request)?;
            if endpoint.try_begin(request.kind, self.config.tunnels_max) {
                return Ok(InFlight { cluster: Arc::clone(self), endpoint, kind: request.kind });
            }
        }
        Err(NoEndpoint::Full)
    }

    /// Waits in the queue for a place.
    ///
    /// # Errors
    /// [`Refusal::Full`].
    pub fn wait(self: &Arc<Self>, wants: Wants, client: IpAddr) -> Result<Waiting<Wants, InFlight>, Refusal> {
        let waiting = self.lasting.queue.enter(wants, share(client), now_us())?;
        // A place that became free before this request was queued was not offered to it.
        self.serve_waiting();
        Ok(waiting)
    }

    /// Gives free places to queued requests, and rejects requests that no endpoint can serve any more. Call it when a
    /// place may have become free, or when an endpoint's health has changed.
    pub fn serve_waiting(self: &Arc<Self>) {
        if self.lasting.queue.is_empty() {
            return;
        }
        let now_ms = now_ms();
        let mut random = fastrand::Rng::new();
        // The result depends only on the excluded endpoints, so each set of them is tried once.
        let mut in_vain: Vec<Vec<u32>> = Vec::new();
        self.lasting.queue.serve(now_us(), |wants| {
            let (hash, exclude) = (wants.hash, wants.exclude.as_slice());
            if in_vain.iter().any(|tried| tried == exclude) {
                return Offer::NotForThis;
            }
            let mut request = Pick { kind: Kind::Request, hash, exclude, now_ms, random: &mut random };
            match self.take_place(&mut request) {
                Ok(place) => Offer::Place(place),
                Err(NoEndpoint::Full) if exclude.is_empty() => Offer::Nothing,
                Err(NoEndpoint::Full) => {
                    in_vain.push(exclude.to_vec());
                    Offer::NotForThis
                }
                Err(_) => Offer::Never,
            }
        });
    }

    /// Whether requests are queued.
    pub fn is_waited_for(&self) -> bool {
        !self.lasting.queue.is_empty()
    }

    /// The queue's counters.
    pub fn queue_counts(&self) -> QueueCounts {
        self.lasting.queue.counts()
    }

    /// Counts a request that timed out in the queue.
    pub fn count_queue_timeout(&self) {
        self.lasting.queue.count_timeout();
    }
}

/// Requests in the lower half, tunnels in the upper half, so that a request becomes a tunnel in one step.
const TUNNEL: u64 = 1 << 32;

impl Endpoint {
    /// Counts one more, unless the limit of its kind is reached.
    fn try_begin(&self, kind: Kind, tunnels_max: u32) -> bool {
        let (limit, under_way) = (self.limit_now(), &self.capacity.traffic.under_way);
        let begun = if kind == Kind::Request && limit == u32::MAX {
            // Without a limit it cannot fail, so the workers need not try.
            under_way.fetch_add(1, SeqCst);
            true
        } else {
            let begin = |under_way| {
                let (requests, tunnels) = split(under_way);
                match kind {
                    Kind::Request => (requests < limit).then_some(under_way + 1),
                    Kind::Tunnel => (tunnels < tunnels_max).then_some(under_way + TUNNEL),
                }
            };
            under_way.fetch_update(SeqCst, SeqCst, begin).is_ok()
        };
        if begun {
            self.count_request();
        }
        begun
    }

    fn end(&self, kind: Kind) {
        let one = match kind {
            Kind::Request => 1,
            Kind::Tunnel => TUNNEL,
        };
        self.capacity.traffic.under_way.fetch_sub(one, SeqCst);
    }

    fn turn_into_tunnel(&self) {
        self.capacity.traffic.under_way.fetch_add(TUNNEL - 1, SeqCst);
    }

    /// Whether one more of its kind may start.
    pub(super) fn has_room(&self, kind: Kind, tunnels_max: u32) -> bool {
        let limit = self.limit_now();
        // Without a limit, do not read what every request of every worker writes.
        if kind == Kind::Request && limit == u32::MAX {
            return true;
        }
        let (requests, tunnels) = split(self.capacity.traffic.under_way.load(SeqCst));
        match kind {
            Kind::Request => requests < limit,
            Kind::Tunnel => tunnels < tunnels_max,
        }
    }

    /// Whether more requests are under way than allowed: the limit was lowered.
    pub fn is_over_limit(&self) -> bool {
        let limit = self.limit_now();
        limit != u32::MAX && split(self.capacity.traffic.under_way.load(SeqCst)).0 > limit
    }

    /// How many more requests it may have under way now.
    pub fn room(&self) -> usize {
        let (requests, _) = split(self.capacity.traffic.under_way.load(SeqCst));
        self.limit_now().saturating_sub(requests) as usize
    }

    /// Requests and tunnels under way over all workers.
    pub fn in_flight(&self) -> u32 {
        let (requests, tunnels) = split(self.capacity.traffic.under_way.load(SeqCst));
        requests.saturating_add(tunnels)
    }

    /// Tunnels under way over all workers.
    pub fn tunnels(&self) -> u32 {
        split(self.capacity.traffic.under_way.load(SeqCst)).1
    }
}

fn split(under_way: u64) -> (u32, u32) {
    // Both halves fit.
    (under_way as u32, (under_way >> 32) as u32)
}
