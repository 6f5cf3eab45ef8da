//! How a request gets its place at an endpoint: at once, or after a wait in the cluster's line.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::{Cluster, Endpoint, NoEndpoint, Pick};
use crate::clock::{now_ms, now_us};
use crate::queue::{Offer, Queue, QueueCounts, Refusal, Waiting};

/// How often a pick is repeated that another worker was faster to use.
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

/// What one who waits needs to be given an endpoint.
pub struct Wants {
    /// The hash of its key, where the cluster balances by one.
    pub hash: Option<u64>,
    /// Ids of endpoints that were already tried.
    pub exclude: Vec<u32>,
}

/// The line of a cluster.
pub(crate) type ClusterQueue = Queue<Wants, InFlight>;

impl InFlight {
    /// The endpoint it counts at.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Takes an answer's latency into account, where the endpoint's limit is found from it.
    pub fn observe(&self, sent: Instant, latency: Duration) {
        if self.endpoint.observe(sent, latency) {
            self.cluster.serve_waiting();
        }
    }

    /// Counts on as a tunnel: the request has become one.
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
    /// Picks an endpoint and takes a place there, past nobody who waits for one.
    ///
    /// # Errors
    /// As [`Cluster::pick`]; [`NoEndpoint::Full`] when the request has to wait.
    pub fn begin(self: &Arc<Self>, mut request: Pick<'_>) -> Result<InFlight, NoEndpoint> {
        if request.kind == Kind::Request && !self.lasting.queue.is_empty() {
            // No place in line for a request that nothing can serve: it would wait for its timeout.
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

    /// Waits in line for a place.
    ///
    /// # Errors
    /// [`Refusal::Full`].
    pub fn wait(self: &Arc<Self>, wants: Wants, client: IpAddr) -> Result<Waiting<Wants, InFlight>, Refusal> {
        let waiting = self.lasting.queue.enter(wants, client, now_us())?;
        // What was freed before we stood in line was given to nobody.
        self.serve_waiting();
        Ok(waiting)
    }

    /// Gives what is free to those who wait, and sends away those whom no endpoint can serve any more. To be called when
    /// a place may have become free, or an endpoint another health.
    pub fn serve_waiting(self: &Arc<Self>) {
        if self.lasting.queue.is_empty() {
            return;
        }
        let now_ms = now_ms();
        let mut random = fastrand::Rng::new();
        // What is free depends on what was tried alone, so nothing is asked twice.
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

    /// Whether requests wait in line.
    pub fn is_waited_for(&self) -> bool {
        !self.lasting.queue.is_empty()
    }

    /// The line's numbers.
    pub fn queue_counts(&self) -> QueueCounts {
        self.lasting.queue.counts()
    }

    /// Counts a request that waited for too long.
    pub fn count_queue_timeout(&self) {
        self.lasting.queue.count_timeout();
    }
}

/// Requests in the lower half, tunnels in the upper, so that one becomes the other in one step.
const TUNNEL: u64 = 1 << 32;

impl Endpoint {
    /// Counts one more, unless there are as many of its kind as may be.
    fn try_begin(&self, kind: Kind, tunnels_max: u32) -> bool {
        let limit = self.limit_now();
        let begun = self.capacity.traffic.under_way.fetch_update(SeqCst, SeqCst, |under_way| {
            let (requests, tunnels) = split(under_way);
            match kind {
                Kind::Request => (requests < limit).then_some(under_way + 1),
                Kind::Tunnel => (tunnels < tunnels_max).then_some(under_way + TUNNEL),
            }
        });
        if begun.is_ok() {
            self.count_request();
        }
        begun.is_ok()
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

    /// Whether one more of its kind may begin.
    pub(super) fn has_room(&self, kind: Kind, tunnels_max: u32) -> bool {
        let (requests, tunnels) = split(self.capacity.traffic.under_way.load(SeqCst));
        match kind {
            Kind::Request => requests < self.limit_now(),
            Kind::Tunnel => tunnels < tunnels_max,
        }
    }

    /// Whether more requests are under way than there may be: the limit has been lowered.
    pub fn is_over_limit(&self) -> bool {
        split(self.capacity.traffic.under_way.load(SeqCst)).0 > self.limit_now()
    }

    /// How many requests more it may have under way now.
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
