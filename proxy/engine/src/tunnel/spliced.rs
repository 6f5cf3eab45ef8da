//! A tunnel whose bytes the kernel forwards: sluice waits for ends and faults, keeps the byte counts, and takes
//! directions back.
//!
//! The kernel does not forward an end. A source that has ended has sent `received` bytes (TCP's own count). The
//! program's ledger says how many of them were forwarded and how many were left to sluice. The other socket's send
//! buffer says how many have arrived there. Only when all of these match, the other side is shut down.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::error::Reason;
use sluice_core::metrics::Event;
use sluice_ebpf::splice::{Ledger, Passed};
use sluice_kernel::tcp::{self, Counts};
use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};
use sluice_ring as ring;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::splicer::Splicer;
use super::watch::{Patience, is_broken, is_writable};
use super::{Context, Ends, Fault, Stop, Transfers, both, copy};
use crate::body::{self, Transfer};

/// How often a spliced tunnel is checked, for its idle timeout and for changes without an event.
const TICK_MAX: Duration = Duration::from_secs(1);
const TICK_MIN: Duration = Duration::from_millis(5);

/// Both directions.
pub(super) struct Links<'a> {
    pub(super) up: Link<'a>,
    pub(super) down: Link<'a>,
}

impl Links<'_> {
    /// Runs until both sides have ended; the result is as for a copy.
    pub(super) async fn run(
        &self,
        ends: &mut Ends<'_>,
        transfers: &mut Transfers,
        deadline: &Deadline,
        with: &Context<'_>,
    ) -> Option<Result<Stop, Reason>> {
        let (down, up) = (&mut ends.downstream, &mut ends.upstream);
        transfers.pause_at(u64::MAX);
        let upwards = pin!(self.up.direction(down.0, up.1, &mut transfers.up, deadline, with));
        let downwards = pin!(self.down.direction(up.0, down.1, &mut transfers.down, deadline, with));
        let result = both(upwards, downwards, deadline).await;
        if result == Some(Err(Reason::SpliceMismatch)) {
            with.metrics.count(Event::SpliceMismatch);
            tracing::error!(
                up = ?self.up.books(),
                down = ?self.down.books(),
                "the byte counts of a spliced tunnel do not match; resetting it"
            );
        }
        result
    }

    /// Bytes that bypassed sluice, up and down.
    pub(super) fn bytes(&self) -> [u64; 2] {
        [&self.up, &self.down].map(|link| link.ledger().map_or(0, |ledger| ledger.redirected))
    }
}

impl Drop for Links<'_> {
    fn drop(&mut self) {
        self.up.splicer.leave([self.up.cookie, self.down.cookie]);
    }
}

/// One direction.
pub(super) struct Link<'a> {
    splicer: &'a Splicer,
    /// The cookie of the source.
    cookie: u64,
    source: ring::Fd,
    target: ring::Fd,
    /// Bytes that the source had received, and the target written, before the first byte in the ledger.
    received_before: u64,
    written_before: u64,
    bell: Arc<Notify>,
    /// The number of pieces at the last check.
    seen: Cell<u64>,
}

/// Why a direction was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// The source has ended.
    End,
    /// Bytes are left to sluice, or will be.
    Return,
}

impl<'a> Link<'a> {
    /// A direction from `source` to `target` that was just joined.
    pub(super) fn new(
        splicer: &'a Splicer,
        cookie: u64,
        [source, target]: [&ring::Fd; 2],
        received_before: u64,
        written_before: u64,
    ) -> Self {
        let bell = splicer.listen(cookie);
        let (source, target) = (ring::Fd::clone(source), ring::Fd::clone(target));
        Self { splicer, cookie, source, target, received_before, written_before, bell, seen: Cell::new(0) }
    }

    #[expect(clippy::too_many_arguments, reason = "one direction: both ends, the transfer, and its limits")]
    async fn direction(
        &self,
        reader: &mut Reader,
        writer: &mut Writer,
        transfer: &mut Transfer,
        deadline: &Deadline,
        with: &Context<'_>,
    ) -> Result<Stop, Fault> {
        if self.wait(deadline).await? == Call::End && self.all_accounted().await?.passed == 0 {
            self.all_written(deadline).await?;
        } else {
            self.take_back(deadline, with).await?;
            self.copy_rest(reader, writer, transfer, deadline, with).await?;
        }
        writer.stream().shutdown_write();
        Ok(Stop::Ended)
    }

    /// Waits until the source has ended or bytes are left to sluice.
    async fn wait(&self, deadline: &Deadline) -> Result<Call, Fault> {
        let tick = (deadline.patience() / 4).clamp(TICK_MIN, TICK_MAX);
        let mut end = pin!(ring::poll(&self.source, libc::POLLRDHUP));
        loop {
            tokio::select! {
                biased;
                ready = &mut end => {
                    let broken = ready.is_err() || is_broken(&self.source);
                    return if broken { Err(Fault::Source) } else { Ok(Call::End) };
                }
                () = self.bell.notified() => {}
                () = sleep(tick) => {}
            }
            let ledger = self.ledger()?;
            if self.seen.replace(ledger.pieces) != ledger.pieces {
                deadline.touch();
            }
            if ledger.passed > 0 || self.splicer.is_returning() {
                return Ok(Call::Return);
            }
            if is_broken(&self.target) {
                return Err(Fault::Target);
            }
        }
    }

    /// The ledger, once it accounts for every byte that the source has received before its end.
    async fn all_accounted(&self) -> Result<Ledger, Fault> {
        // Bytes may be left in the queue without a notification.
        tcp::kick(self.source.as_fd()).map_err(|_| Fault::Source)?;
        let mut patience = Patience::new();
        loop {
            let came = self.came()?;
            let ledger = self.ledger()?;
            if came == Some(ledger.redirected + ledger.passed) {
                return Ok(ledger);
            }
            if is_broken(&self.source) {
                return Err(Fault::Source);
            }
            patience.wait().await?;
        }
    }

    /// Bytes received since the join, if the end has arrived as well. A reset has no end that counts, so its count
    /// never matches the ledger.
    fn came(&self) -> Result<Option<u64>, Fault> {
        let received = Counts::read(self.source.as_fd()).map_err(|_| Fault::Source)?.received;
        // The end counts as one.
        Ok((received - self.received_before).checked_sub(1))
    }

    /// Waits until everything redirected is in the target's send buffer. The target may take its time.
    async fn all_written(&self, deadline: &Deadline) -> Result<(), Fault> {
        let mut patience = Patience::new();
        let mut before = None;
        loop {
            let redirected = self.ledger()?.redirected;
            let written = tcp::written_at_least(self.target.as_fd()).map_err(|_| Fault::Target)?;
            // Bytes that are being acknowledged at this moment may be missing.
            let written = written.saturating_sub(self.written_before);
            if written == redirected {
                return Ok(());
            }
            if is_broken(&self.target) {
                return Err(Fault::Target);
            }
            if written > redirected {
                return Err(Fault::Ledger);
            }
            if before.replace(written) != Some(written) {
                deadline.touch();
                patience = Patience::new();
            } else if !is_writable(&self.target) {
                patience.renew();
            }
            patience.wait().await?;
        }
    }

    /// Ends the redirection of this direction permanently, and waits until what was redirected is written.
    async fn take_back(&self, deadline: &Deadline, with: &Context<'_>) -> Result<(), Fault> {
        self.splicer.close(self.cookie).map_err(|_| Fault::Ledger)?;
        // Takes the source's lock: a program that had seen the gate open has ended by then.
        Counts::read(self.source.as_fd()).map_err(|_| Fault::Source)?;
        let why = Passed::from_number(self.ledger()?.why);
        with.metrics.count(match why {
            Some(Passed::Budget) => Event::SpliceReturnedBudget,
            Some(Passed::NoPeer) => Event::SpliceReturnedPeer,
            Some(Passed::Closed) | None => Event::SpliceReturnedDrain,
        });
        self.all_written(deadline).await
    }

    /// Copies what the kernel leaves to sluice, to the end.
    #[expect(clippy::too_many_arguments, reason = "one direction: both ends, the transfer, and its limits")]
    async fn copy_rest(
        &self,
        reader: &mut Reader,
        writer: &mut Writer,
        transfer: &mut Transfer,
        deadline: &Deadline,
        with: &Context<'_>,
    ) -> Result<(), Fault> {
        let redirected = self.ledger()?.redirected;
        let copied_before = transfer.bytes();
        let mut patience = Patience::new();
        loop {
            body::copy(reader, writer, transfer, Vec::new(), deadline, with.buffers)
                .await
                .map_err(copy::fault)?;
            writer.settle(deadline).await.map_err(|_| Fault::Target)?;
            if self.came()? == Some(transfer.bytes() - copied_before + redirected) {
                return Ok(());
            }
            // A socket in a sockmap reports its end while the kernel still moves earlier bytes to the queue that they
            // are read from.
            patience.wait().await?;
            transfer.reopen();
        }
    }

    fn ledger(&self) -> Result<Ledger, Fault> {
        self.splicer.ledger(self.cookie).map_err(|_| Fault::Ledger)
    }

    /// For the log: the ledger, the bytes received and the bytes written.
    fn books(&self) -> (Option<Ledger>, Option<u64>, Option<u64>) {
        let written = tcp::written_at_least(self.target.as_fd()).ok();
        (
            self.ledger().ok(),
            self.came().ok().flatten(),
            written.map(|bytes| bytes.saturating_sub(self.written_before)),
        )
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        self.splicer.forget(self.cookie);
    }
}
