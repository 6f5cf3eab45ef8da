//! The switch from copying to the kernel, at a moment when no byte is in between.
//!
//! The kernel's program takes a socket's received data in the pieces in which it arrived. When a socket is put under
//! the program, nothing may be partly read: no receive may be under way, and nothing may be unread. Data that arrives a
//! moment later is complete and waits for the kick.

use crate::AssistError;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use sluice_core::error::Reason;
use sluice_core::metrics::Event;
use sluice_kernel::KernelError;
use sluice_kernel::tcp::{self, Counts};
use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};
use sluice_ring as ring;
use tokio::time::timeout;

use super::spliced::{Link, Links};
use super::splicer::Splicer;
use super::{Context, Ends, Fault, Stop, Transfers};
use crate::body::Transfer;

/// How often bytes that arrived in the meantime are forwarded before the tunnel counts as too busy.
const ROUNDS: u32 = 16;
const ROUND_BYTES: usize = 64 * 1024;
/// How long to wait for a send. A receiver that does not read may first want its own bytes to be read, and nothing is
/// read while waiting.
const SETTLED: Duration = Duration::from_millis(20);

/// The result of the switch.
pub(super) enum Switch<'a> {
    /// The kernel forwards everything from now on.
    Joined(Links<'a>),
    /// There was no quiet moment.
    Busy,
    /// It is impossible with these connections; they are copied as before.
    Impossible,
}

type Failure = Option<Result<Stop, Reason>>;

/// Brings both directions to rest and joins the sockets. The error is how the tunnel ends.
pub(super) async fn join<'a>(
    ends: &mut Ends<'_>,
    transfers: &mut Transfers,
    splicer: &'a Splicer,
    deadline: &Deadline,
    with: &Context<'_>,
) -> Result<Switch<'a>, Failure> {
    let Some(quiet) = deadline.run(come_to_rest(ends, transfers, deadline)).await else {
        return Err(None);
    };
    match quiet {
        Err((fault, is_up)) => return Err(Some(Err(reason(fault, is_up)))),
        Ok(Rest::Busy) => return Ok(Switch::Busy),
        Ok(Rest::Ending) => return Ok(Switch::Impossible),
        // If it were joined now, nobody would wake it.
        Ok(Rest::Quiet) if splicer.is_returning() => return Ok(Switch::Impossible),
        Ok(Rest::Quiet) => {}
    }
    match try_join(ends, splicer) {
        Ok(Some(links)) => {
            with.metrics.count(Event::TunnelSpliced);
            Ok(Switch::Joined(links))
        }
        Ok(None) => Ok(Switch::Busy),
        // A side has ended in the meantime: the copy handles that.
        Err(_) if !are_established(ends) => Ok(Switch::Impossible),
        Err(error) => {
            with.metrics.count(Event::SpliceFailed);
            splicer.complain(&error);
            Ok(Switch::Impossible)
        }
    }
}

fn reason(fault: Fault, is_up: bool) -> Reason {
    match (fault, is_up) {
        (Fault::Ledger, _) => Reason::SpliceMismatch,
        (Fault::Source, true) | (Fault::Target, false) => Reason::ClientGone,
        (Fault::Target, true) => Reason::UpstreamClosed,
        (Fault::Source, false) => Reason::ResponseTruncated,
    }
}

enum Rest {
    Quiet,
    Busy,
    /// A side has ended: the copy handles that.
    Ending,
}

/// Stops the receives and forwards what they returned, until nothing is left.
async fn come_to_rest(
    ends: &mut Ends<'_>,
    transfers: &mut Transfers,
    deadline: &Deadline,
) -> Result<Rest, (Fault, bool)> {
    let Ends { downstream, upstream } = ends;
    for _ in 0..ROUNDS {
        // Sends first: stopping a socket's receive would stop its sends, too.
        for (writer, is_up) in [(&mut *upstream.1, true), (&mut *downstream.1, false)] {
            match timeout(SETTLED, writer.settle(deadline)).await {
                Ok(settled) => settled.map_err(|_| (Fault::Target, is_up))?,
                Err(_) => return Ok(Rest::Busy),
            }
        }
        if downstream.0.stop().await.is_err() || upstream.0.stop().await.is_err() {
            return Ok(Rest::Ending);
        }
        let up = send_on(downstream.0, upstream.1, &mut transfers.up).map_err(|fault| (fault, true))?;
        let down = send_on(upstream.0, downstream.1, &mut transfers.down).map_err(|fault| (fault, false))?;
        if !up && !down {
            let mut quiet = true;
            for reader in [&mut *downstream.0, &mut *upstream.0] {
                quiet &= take_unread(reader).await.map_err(|()| (Fault::Source, true))?;
            }
            if quiet {
                return Ok(Rest::Quiet);
            }
        }
    }
    Ok(Rest::Busy)
}

/// Submits the reader's bytes; returns whether there were any.
fn send_on(reader: &mut Reader, writer: &mut Writer, transfer: &mut Transfer) -> Result<bool, Fault> {
    if reader.data().is_empty() {
        return Ok(false);
    }
    let mut out = writer.spare();
    let taken = transfer.push(reader.data(), &mut out).map_err(super::copy::fault)?;
    reader.consume(taken);
    writer.submit(out, 0);
    Ok(true)
}

/// Receives unread bytes; returns true if there were none.
async fn take_unread(reader: &mut Reader) -> Result<bool, ()> {
    let Some(fd) = reader.stream().socket() else {
        return Err(());
    };
    if tcp::unread(fd.as_fd()).map_err(drop)? == 0 {
        reader.shrink(0);
        return Ok(true);
    }
    reader.fill(ROUND_BYTES).await.map_err(drop)?;
    Ok(false)
}

/// Returns `None` when bytes arrived at the last moment.
fn try_join<'a>(ends: &Ends<'_>, splicer: &'a Splicer) -> Result<Option<Links<'a>>, AssistError> {
    let (Some(downstream), Some(upstream)) =
        (ends.downstream.0.stream().socket(), ends.upstream.0.stream().socket())
    else {
        return Err("not a socket".into());
    };
    let (Some(first), Some(second)) = (books(downstream.as_fd())?, books(upstream.as_fd())?) else {
        return Ok(None);
    };
    let [up, down] =
        splicer.join([downstream.as_fd(), upstream.as_fd()]).map_err(|error| error.to_string())?;
    let links = Links {
        up: Link::new(splicer, up, [downstream, upstream], first.received, second.written),
        down: Link::new(splicer, down, [upstream, downstream], second.received, first.written),
    };
    kick(&[downstream, upstream]).map_err(text)?;
    Ok(Some(links))
}

fn kick(sockets: &[&ring::Fd]) -> Result<(), KernelError> {
    sockets.iter().try_for_each(|socket| tcp::kick(socket.as_fd()))
}

/// The byte counts of a socket when it is joined.
struct Books {
    /// Bytes received, all of them read.
    received: u64,
    /// Bytes written.
    written: u64,
}

fn books(socket: BorrowedFd<'_>) -> Result<Option<Books>, AssistError> {
    let Some(written) = tcp::written(socket).map_err(text)? else {
        return Ok(None);
    };
    let counts = Counts::read(socket).map_err(text)?;
    // Only afterwards: bytes that are not there now were not there then.
    let unread = tcp::unread(socket).map_err(text)?;
    let is_quiet = unread == 0 && counts.is_established;
    Ok(is_quiet.then_some(Books { received: counts.received, written }))
}

fn are_established(ends: &Ends<'_>) -> bool {
    [ends.downstream.0.stream(), ends.upstream.0.stream()].into_iter().all(|stream| {
        stream.socket().is_some_and(|fd| Counts::read(fd.as_fd()).is_ok_and(|counts| counts.is_established))
    })
}

fn text(error: KernelError) -> String {
    error.to_string()
}
