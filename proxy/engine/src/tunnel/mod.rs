//! Opaque bytes in both directions after a 101 or on a `tcp` listener: copied through the ring, or spliced by the
//! kernel.
//!
//! Every tunnel starts as a copy. `switch` joins its two sockets under the kernel's program once enough bytes have
//! passed and no byte is in between; `spliced` then only watches, counts and ends. What the kernel cannot buffer
//! returns to `copy`, one direction at a time and permanently.

mod check;
mod copy;
mod spliced;
mod splicer;
mod switch;
mod watch;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use sluice_config::KernelAssists;
use sluice_core::error::Reason;
use sluice_core::metrics::Counted;
use sluice_core::metrics::{Event, WorkerRecorder};
use sluice_core::record::BodyPath;
use sluice_kernel::splice::Limits;
use sluice_net::buffers::Buffers;
use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};
use sluice_ring::Engine;

use crate::body::Transfer;
use crate::bypass::Joiner;

pub use splicer::{Splicer, SplicerFactory};
use switch::Switch;

/// Prepares splicing and tests it on sockets of sluice's own. Requires privileges, and takes a few tenths of a second.
///
/// # Errors
/// Why it cannot be used: a code for programs, and a text for people.
pub fn ready(kernel: KernelAssists, engine: Engine) -> Result<SplicerFactory, (&'static str, String)> {
    let limits = Limits {
        budget_bytes: kernel.splice_budget_bytes,
        budget_pieces: kernel.splice_budget_pieces,
        sockets_max: kernel.splice_tunnels_max.saturating_mul(2),
    };
    let loaded = splicer::load(limits, kernel.splice_after_bytes);
    let shared = loaded.map_err(|error| ("load", format!("its program cannot be loaded: {error}")))?;
    check::check(&shared, engine).map_err(|check| ("self_test", format!("its self-test failed: {check}")))?;
    Ok(shared)
}

/// The two connections, each with its directions.
pub struct Ends<'a> {
    pub(crate) downstream: (&'a mut Reader, &'a mut Writer),
    pub(crate) upstream: (&'a mut Reader, &'a mut Writer),
}

/// How a tunnel ended.
pub struct Outcome {
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    /// Why it ended, unless both sides had ended cleanly.
    pub(crate) reason: Option<Reason>,
    /// One side failed, so the other must be reset rather than closed.
    pub(crate) broken: bool,
    /// The path of the bytes: splice if any of them could bypass sluice.
    pub(crate) path: BodyPath,
}

/// Why a direction stopped without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Its end was forwarded.
    Ended,
    /// The requested number of bytes has passed.
    Paused,
}

/// The cause of a failed direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The side that sends.
    Source,
    /// The side that receives.
    Target,
    /// The byte counts of the kernel and of sluice do not match.
    Ledger,
}

/// What each direction has copied.
struct Transfers {
    up: Transfer,
    down: Transfer,
}

/// What a tunnel uses from its worker.
pub struct Context<'a> {
    pub(crate) metrics: &'a Rc<WorkerRecorder>,
    pub(crate) buffers: &'a Buffers,
    /// `None` if tunnels are only copied.
    pub(crate) splicer: Option<&'a Splicer>,
    /// The joiner that may have joined the client's connection.
    pub(crate) joiner: Option<&'a Joiner>,
}

/// Forwards bytes until both sides have ended, one has failed, or nothing has moved for `idle_ms`.
pub async fn run(ends: Ends<'_>, deadline: &Deadline, idle_ms: u64, with: Context<'_>) -> Outcome {
    // Bytes sent to a joined socket bypass the program that would splice them.
    let joined = with.joiner.is_some_and(|joiner| joiner.holds(ends.downstream.0.stream()));
    let splicer = with.splicer.filter(|_| !joined);
    pass(ends, deadline, idle_ms, &Context { splicer, ..with }).await
}

async fn pass(mut ends: Ends<'_>, deadline: &Deadline, idle_ms: u64, with: &Context<'_>) -> Outcome {
    let _open = Counted::new(with.metrics, Event::TunnelOpened, Event::TunnelClosed);
    deadline.set(idle_ms);
    let mut transfers = Transfers { up: Transfer::opaque(), down: Transfer::opaque() };
    let TunnelOutcome { result, spliced } = move_all(&mut ends, &mut transfers, deadline, with).await;
    let path = if spliced.is_some() { BodyPath::Splice } else { BodyPath::Copy };
    let spliced = spliced.unwrap_or_default();
    let (reason, broken) = match result {
        Some(Ok(_)) => (None, false),
        Some(Err(side)) => (Some(side), true),
        None => (Some(Reason::TunnelIdle), true),
    };
    if broken {
        ends.upstream.1.stream().reset_on_close();
    }
    let (bytes_up, bytes_down) = (transfers.up.bytes() + spliced[0], transfers.down.bytes() + spliced[1]);
    with.metrics.add(Event::TunnelBytesToUpstream, bytes_up);
    with.metrics.add(Event::TunnelBytesToDownstream, bytes_down);
    with.metrics.add(Event::TunnelBytesSpliced, spliced[0] + spliced[1]);
    Outcome { bytes_up, bytes_down, reason, broken, path }
}

/// The result of moving the bytes.
struct TunnelOutcome {
    /// `None` means that the deadline elapsed.
    result: Option<Result<Stop, Reason>>,
    /// Bytes that the kernel forwarded, up and down, if the tunnel was joined.
    spliced: Option<[u64; 2]>,
}

/// Copies, and joins the sockets if and when that is wanted.
async fn move_all(
    ends: &mut Ends<'_>,
    transfers: &mut Transfers,
    deadline: &Deadline,
    with: &Context<'_>,
) -> TunnelOutcome {
    let splicer = with.splicer.filter(|splicer| splicer.wants(ends));
    if let Some(splicer) = splicer {
        transfers.pause_at(splicer.after_bytes());
    }
    loop {
        let result = copied(ends, transfers, deadline, with).await;
        let (Some(Ok(Stop::Paused)), Some(splicer)) = (result, splicer) else {
            return TunnelOutcome { result, spliced: None };
        };
        match switch::join(ends, transfers, splicer, deadline, with).await {
            Ok(Switch::Joined(links)) => {
                let result = links.run(ends, transfers, deadline, with).await;
                return TunnelOutcome { result, spliced: Some(links.bytes()) };
            }
            Ok(Switch::Busy) => transfers.pause_later(splicer.after_bytes()),
            Ok(Switch::Impossible) => transfers.pause_at(u64::MAX),
            Err(result) => return TunnelOutcome { result, spliced: None },
        }
    }
}

impl Transfers {
    fn pause_at(&mut self, bytes: u64) {
        self.up.pause_at(bytes);
        self.down.pause_at(bytes);
    }

    /// After as many bytes again, and at least one step more.
    fn pause_later(&mut self, after_bytes: u64) {
        const STEP_BYTES: u64 = 1 << 20;
        let passed = self.up.bytes().max(self.down.bytes());
        self.pause_at(passed.saturating_add(after_bytes.max(STEP_BYTES)));
    }
}

async fn copied(
    ends: &mut Ends<'_>,
    transfers: &mut Transfers,
    deadline: &Deadline,
    with: &Context<'_>,
) -> Option<Result<Stop, Reason>> {
    let (down, up) = (&mut ends.downstream, &mut ends.upstream);
    let upwards = pin!(copy::direction(down.0, up.1, &mut transfers.up, deadline, with));
    let downwards = pin!(copy::direction(up.0, down.1, &mut transfers.down, deadline, with));
    both(upwards, downwards, deadline).await
}

/// Runs both directions; the first fault or pause ends both. `None` means that the deadline elapsed.
async fn both(
    mut up: Pin<&mut impl Future<Output = Result<Stop, Fault>>>,
    mut down: Pin<&mut impl Future<Output = Result<Stop, Fault>>>,
    deadline: &Deadline,
) -> Option<Result<Stop, Reason>> {
    let (mut up_done, mut down_done) = (false, false);
    poll_fn(|cx| {
        if !up_done && let Poll::Ready(ended) = up.as_mut().poll(cx) {
            match ended {
                Ok(Stop::Ended) => up_done = true,
                Ok(Stop::Paused) => return Poll::Ready(Some(Ok(Stop::Paused))),
                Err(Fault::Ledger) => return Poll::Ready(Some(Err(Reason::SpliceMismatch))),
                // The client was sent everything; a reset could cost it what is still in flight.
                Err(_) if down_done => return Poll::Ready(Some(Ok(Stop::Ended))),
                Err(Fault::Target) => return Poll::Ready(Some(Err(Reason::UpstreamClosed))),
                Err(Fault::Source) => return Poll::Ready(Some(Err(Reason::ClientGone))),
            }
        }
        if !down_done && let Poll::Ready(ended) = down.as_mut().poll(cx) {
            match ended {
                Ok(Stop::Ended) => down_done = true,
                Ok(Stop::Paused) => return Poll::Ready(Some(Ok(Stop::Paused))),
                Err(Fault::Ledger) => return Poll::Ready(Some(Err(Reason::SpliceMismatch))),
                Err(Fault::Target) => return Poll::Ready(Some(Err(Reason::ClientGone))),
                Err(Fault::Source) => return Poll::Ready(Some(Err(Reason::ResponseTruncated))),
            }
        }
        if up_done && down_done {
            return Poll::Ready(Some(Ok(Stop::Ended)));
        }
        deadline.poll_elapsed(cx).map(|()| None)
    })
    .await
}
