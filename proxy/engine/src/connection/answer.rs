//! Answers that sluice makes itself.

use sluice_core::error::Reason;
use sluice_http::Trailers;

use super::account::Account;
use super::{Connection, Next};
use crate::body::Transfer;
use crate::opening::Opening;
use crate::progress::Progress;
use crate::response::{self, Further, Local};

impl Connection {
    /// Answers bytes that are no acceptable head, and closes: where a next request would begin is
    /// anybody's guess.
    /// `is_head` tells whether it looks like a HEAD all the same.
    pub(super) async fn refuse(&mut self, reason: Reason, is_head: bool) -> Next {
        // The fields of a head that failed to parse are not to be trusted for anything.
        self.session.head.forget();
        let account = Account::new(&self.worker, self.peer.address, &self.session.head);
        let local = Local::reason(reason).for_head(is_head);
        self.answer_and_record(&account, &local, false, Some(reason)).await;
        Next::Close { linger: true }
    }

    /// Answers a head that was parsed but cannot be served, and closes.
    pub(super) async fn reject(&mut self, account: &Account, reason: Reason) -> Next {
        self.answer_and_record(account, &Local::reason(reason), false, Some(reason)).await;
        Next::Close { linger: true }
    }

    /// [`Connection::answer`] for an exchange that no endpoint had a part in.
    pub(super) async fn answer_and_record(
        &mut self,
        account: &Account,
        local: &Local<'_>,
        keep_alive: bool,
        reason: Option<Reason>,
    ) -> bool {
        let mut progress = Progress::default();
        let keep_alive = self.answer(account, local, keep_alive, &mut progress).await;
        self.record(account, &progress, reason);
        keep_alive
    }

    /// Sends a local answer; true when the connection may go on.
    pub(super) async fn answer(
        &mut self,
        account: &Account,
        local: &Local<'_>,
        keep_alive: bool,
        progress: &mut Progress,
    ) -> bool {
        self.io.deadline.set(self.limits().keep_alive_timeout_ms);
        progress.status = local.status;
        let settled = self.io.deadline.run(self.io.writer.settle(&self.io.deadline)).await;
        if !matches!(settled, Some(Ok(()))) {
            return false;
        }
        let mut out = Opening::to(&mut self.io.writer);
        let snapshot = &account.snapshot;
        let debug = account.facts(snapshot).map(|facts| facts.fields(progress));
        let debug = debug.as_ref().map(|fields| fields.each());
        let mut extra = debug.as_ref().map_or_else(Vec::new, |fields| fields.to_vec());
        if local.is_failure() && !self.session.head.method_bytes().is_empty() {
            // Whoever reports it can say which line of the log tells of it.
            extra.push((b"X-Request-Id", &account.request_id));
        }
        let body = self.session.service.as_ref().and_then(|service| local.page(service));
        let further = Further { body, fields: &extra, hsts: self.listener.hsts.as_deref() };
        response::encode(&mut out, local, &self.session.head, keep_alive, &snapshot.error_pages, further);
        progress.bytes_out += out.size() as u64;
        out.submit(&mut self.io.writer, Some(Trailers::NONE));
        let sent = self.io.deadline.run(self.io.writer.quieten(&self.io.deadline)).await;
        keep_alive && matches!(sent, Some(Ok(())))
    }

    /// Reads and drops the rest of a request body that nobody wanted; false when it is too much, too slow
    /// or malformed.
    pub(super) async fn drain_body(&mut self, transfer: &mut Transfer) -> bool {
        self.io.deadline.set(self.limits().drain_body_timeout_ms);
        let start = transfer.bytes();
        let mut scrap = Vec::new();
        loop {
            scrap.clear();
            if transfer.take(&mut self.io.reader, &mut scrap).is_err() {
                return false;
            }
            if transfer.is_done() {
                return true;
            }
            if transfer.bytes() - start > self.limits().drain_bytes_max {
                return false;
            }
            let filled = self.io.deadline.run(self.io.reader.fill(sluice_net::buffers::SMALL_BYTES)).await;
            let has_more = matches!(filled, Some(Ok(count)) if count > 0 || self.io.reader.has_ended());
            if !has_more {
                return false;
            }
        }
    }
}
