//! Buffered bodies on the client's side: a buffered request is received completely before an endpoint is used, and a
//! buffered response is sent after the origin has finished.

use sluice_config::Switch;
use sluice_core::error::Reason;
use sluice_http::{Expect, canonical_reason};

use super::account::Account;
use super::{Connection, Next};
use crate::body::Transfer;
use crate::exchange::{self, HeldAnswer, Policy};
use crate::opening::Opening;
use crate::progress::{Progress, Sent};
use crate::spool::{BufferedBody, Intake, SendError};
use crate::worker::Worker;

/// The interim response to a client that waits with its body.
const CONTINUE: u16 = 100;

impl Connection {
    /// Receives the whole body of the request, if the route buffers requests and there is a body. The route's limit on
    /// bodies applies in any case.
    pub(super) async fn hold_request(
        &mut self,
        worker: &Worker,
        policy: &Policy<'_>,
        transfer: &mut Transfer,
    ) -> Result<Option<Box<BufferedBody>>, Reason> {
        let buffering = policy.buffering;
        if buffering.request_body_bytes_max > 0 {
            transfer.limit(buffering.request_body_bytes_max).map_err(exchange::upload_reason)?;
        }
        if buffering.buffer_requests == Switch::Off || transfer.framing().is_empty() {
            return Ok(None);
        }
        self.io.deadline.set(policy.body_idle_timeout_ms);
        if self.session.head.expect() == Expect::Continue && self.io.reader.data().is_empty() {
            self.say_continue().await?;
        }
        let intake = Intake::new(&worker.resources().spool, policy.buffers, buffering.buffer_memory_bytes);
        // Boxed, so that other exchanges do not pay for its size.
        let receiving = Box::pin(intake.run(&mut self.io.reader, transfer, &self.io.deadline));
        match self.io.deadline.run(receiving).await {
            Some(held) => held.map(|held| Some(Box::new(held))).map_err(|error| error.of_request()),
            None => Err(Reason::BodyTimeout),
        }
    }

    /// The origin would send it too late: it gets the request only when the body has arrived.
    async fn say_continue(&mut self) -> Result<(), Reason> {
        let settled = self.io.deadline.run(self.io.writer.settle(&self.io.deadline)).await;
        if !matches!(settled, Some(Ok(()))) {
            return Err(Reason::ClientGone);
        }
        let mut out = Opening::to(&mut self.io.writer);
        out.head().response(CONTINUE, canonical_reason(CONTINUE).as_bytes());
        out.head().end();
        out.submit(&mut self.io.writer, None);
        Ok(())
    }

    /// Sends a complete response, which only its client still waits for.
    #[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end here")]
    pub(super) async fn send_held(
        &mut self,
        policy: &Policy<'_>,
        account: &Account,
        mut progress: Progress,
        answer: HeldAnswer,
        transfer: &Transfer,
    ) -> Next {
        let HeldAnswer { status, opening, mut message, keep_alive } = answer;
        progress.status = status;
        progress.sent = Sent::Head;
        self.io.deadline.set(policy.body_idle_timeout_ms);
        let before = self.io.writer.sent_in_all();
        let buffers = &self.worker.resources().buffers;
        let head_bytes = opening.size() as u64;
        let sending = Box::pin(message.send(opening, &mut self.io.writer, &self.io.deadline, buffers));
        let sent = self.io.deadline.run(sending).await;
        let failure = match sent {
            Some(Ok(())) => None,
            Some(Err(SendError::Unwritable)) => Some(Reason::ClientGone),
            Some(Err(SendError::Disk)) => Some(Reason::ResponseSpoolFailed),
            None => Some(Reason::ClientStalled),
        };
        progress.bytes_out += match failure {
            None => head_bytes + message.bytes(),
            Some(_) => self.io.writer.sent_in_all() - before,
        };
        if let Some(reason) = failure {
            return self.fail(account, progress, reason, transfer).await;
        }
        self.record(account, &progress, None);
        if keep_alive { Next::KeepAlive } else { self.last_answer(transfer) }
    }
}
