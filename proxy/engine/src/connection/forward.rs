//! The part of an exchange that involves an origin, seen from the downstream side.

use std::borrow::Cow;
use std::pin::pin;

use sluice_config::UpstreamProtocol;
use sluice_core::error::{Reason, Side};
use sluice_core::forwarded;
use sluice_core::record::BodyPath;
use sluice_core::router::{strip_prefix, without_dot_segments};
use sluice_http::{Expect, FieldEdits, Framing, RequestForward, RequestHead, Version};

use super::account::Account;
use super::variables::without_content;
use super::{Connection, Next, trace};
use crate::body::Transfer;
use crate::cache::Change;
use crate::exchange::{self, Downstream, Finish, Policy, ReplacedAnswer};
use crate::http2::upstream::can_say;
use crate::opening::Opening;
use crate::progress::{Progress, Sent};
use crate::response::Local;
use crate::snapshot::RouteEntry;
use crate::spool::Message;
use crate::tunnel;
use crate::upstream::Acquired;
use crate::worker::Worker;

/// Room for a typical request head with the added fields.
const MESSAGE_BYTES: usize = 1024;

impl Connection {
    /// Forwards the request to the route's cluster and the response to the client.
    #[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end at different times")]
    pub(super) async fn forward(
        &mut self,
        worker: &Worker,
        entry: &RouteEntry,
        policy: &Policy<'_>,
        account: &Account,
        transfer: &mut Transfer,
    ) -> Next {
        let mut progress = Progress { path: Some(BodyPath::Copy), ..Progress::default() };
        let composed = {
            let composing = pin!(self.compose(worker, entry, policy, account, transfer));
            exchange::until_cut(policy, composing).await
        };
        let (mut held, opening) = match composed {
            Ok(composed) => composed,
            Err(reason) => {
                progress.bytes_in = transfer.bytes();
                return self.fail(account, progress, reason, transfer).await;
            }
        };
        let keep_alive = self.may_continue();
        let host = self.session.head.host();
        let host = if host.is_empty() { self.listener.authority.as_bytes() } else { host };
        let mut downstream = Downstream {
            change: Change::of(worker.view(), &account.snapshot, &self.session.head, host),
            head: &self.session.head,
            reader: &mut self.io.reader,
            writer: &mut self.io.writer,
            deadline: &self.io.deadline,
            limits: &self.listener.config.limits,
            transfer: &mut *transfer,
            held: held.as_deref_mut(),
            keep_alive,
            listener: self.listener.fields(self.session.head.version()),
            client: &mut self.peer.direct,
            exchanges: self.session.exchanges,
        };
        let outcome =
            exchange::forward(worker.resources(), policy, &mut downstream, opening, &mut progress).await;
        progress.bytes_in = transfer.bytes();
        let is_kept = matches!(outcome, Ok(Finish::Cached(..)) | Err(_));
        if let Some(status) = policy.cache.status().filter(|_| !is_kept) {
            worker.metrics().count(status.event());
        }
        match outcome {
            Ok(Finish::Answered { keep_alive }) => {
                self.record(account, &progress, None);
                if keep_alive { Next::KeepAlive } else { self.last_answer(transfer) }
            }
            Ok(Finish::Replaced(replaced)) if replaced.file.is_some() => {
                self.send_handed_over(policy, account, progress, &replaced, transfer).await
            }
            Ok(Finish::Replaced(replaced)) => {
                self.send_page(policy, account, progress, *replaced, transfer).await
            }
            Ok(Finish::Held(answer)) => {
                // Its file and memory are no longer needed.
                drop(held);
                self.send_held(policy, account, progress, *answer, transfer).await
            }
            // Separate, so that the exchanges that become no tunnel take less memory.
            Ok(Finish::Upgraded(acquired)) => {
                Box::pin(self.tunnel(worker, policy, acquired, account, progress)).await
            }
            Ok(Finish::Cached(stored, status)) => {
                if policy.cache.fill().is_some_and(|fill| fill.is_detached()) {
                    return Next::Abort { reset: false };
                }
                Box::pin(self.send_stored(
                    &stored,
                    (status, Some(policy)),
                    entry,
                    account,
                    (transfer, progress),
                ))
                .await
            }
            Err(reason) => {
                let state = (&*transfer, &mut progress);
                if let Some(next) = self.fail_fill(policy, reason, entry, account, state).await {
                    return next;
                }
                self.fail(account, progress, reason, transfer).await
            }
        }
    }

    /// The request to send: its first part, and the complete request if it was buffered.
    #[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end at different times")]
    async fn compose(
        &mut self,
        worker: &Worker,
        entry: &RouteEntry,
        policy: &Policy<'_>,
        account: &Account,
        transfer: &mut Transfer,
    ) -> Result<(Option<Box<Message>>, Opening), Reason> {
        let over_http2 = policy.cluster.config.protocol == UpstreamProtocol::H2;
        if over_http2 && !can_say(&sent_target(entry, &self.session.head), self.sent_host(entry)) {
            return Err(Reason::BadRequest);
        }
        let version = if over_http2 { Version::Http2 } else { Version::Http11 };
        transfer.set_receiver(version);
        // An application may mistake a trailer for a field of the head.
        transfer.refuse_trailers(|| {
            let edited = policy.request_edits.into_iter().flat_map(FieldEdits::names_taken_out);
            let dropped = trace::dropped(account).iter().map(|name| name.to_vec());
            edited.chain(dropped).chain(self.session.head.nominated()).collect()
        });
        let mut opening = Opening::new(Vec::with_capacity(MESSAGE_BYTES), over_http2);
        let held = self.hold_request(worker, policy, transfer).await?;
        let framing = held.as_ref().map_or_else(|| transfer.framing(), |held| held.framing(version));
        self.encode(&mut opening, entry, policy, account, (framing, held.is_some()));
        if let Some(held) = held {
            let mut message = held.behind(&opening.bytes, framing);
            opening.bytes = message.take_first();
            return Ok((Some(Box::new(message)), opening));
        }
        // The part of the body that has arrived is checked before anything is sent: a request with a fault in its first
        // bytes never reaches an origin.
        transfer.take(&mut self.io.reader, &mut opening.bytes).map_err(exchange::upload_reason)?;
        Ok((None, opening))
    }

    /// Encodes the head for the framing of the body; `whole` if the body was buffered.
    #[expect(clippy::too_many_arguments, reason = "a pure step of `compose`, with its parts")]
    fn encode(
        &self,
        out: &mut Opening,
        entry: &RouteEntry,
        policy: &Policy<'_>,
        account: &Account,
        (framing, whole): (Framing, bool),
    ) {
        let target = sent_target(entry, &self.session.head);
        let mut clock = [0; forwarded::REQUEST_START_MAX];
        let traceparent = account.trace.map(|trace| trace.traceparent());
        out.encode_request(
            &self.session.head,
            &RequestForward {
                path_and_query: &target,
                host: self.sent_host(entry),
                framing,
                client_ip: self.peer.text.as_bytes(),
                proto: if self.listener.tls().is_some() { b"https" } else { b"http" },
                trusted: account.trusted,
                request_id: &account.request_id,
                request_start: forwarded::request_start(account.started, &mut clock),
                continued: whole && self.session.head.expect() == Expect::Continue,
                via: policy.via,
                upgrade: self.session.head.upgrade(),
                dropped: trace::dropped(account),
                traceparent: traceparent.as_ref().map(<[u8; _]>::as_slice),
                is_early: self.peer.is_early(),
                identity: self.identity(account),
                edits: policy.request_edits,
            },
        );
    }

    /// The Host that is sent to the origin.
    fn sent_host<'a>(&'a self, entry: &'a RouteEntry) -> &'a [u8] {
        match &entry.config.host_rewrite {
            Some(host) => host.as_bytes(),
            None if self.session.head.host().is_empty() => self.listener.authority.as_bytes(),
            None => self.session.head.host(),
        }
    }

    /// The fields about the client's certificate: ours where the listener asks for one, a trusted proxy's (`None`), or
    /// none at all. A service's `--forward-headers` is no reason to believe them.
    fn identity(&self, account: &Account) -> Option<&[(&'static [u8], Vec<u8>)]> {
        let ours = self.peer.identity.as_ref().map(|identity| identity.fields());
        ours.or((!account.is_proxy).then_some(&[]))
    }

    /// Responds to a failed exchange if no part of a response has been sent; otherwise ends the connection so that the
    /// client sees the fault.
    pub(super) async fn fail(
        &mut self,
        account: &Account,
        mut progress: Progress,
        reason: Reason,
        transfer: &Transfer,
    ) -> Next {
        if reason.status() == 499 {
            progress.status = 499;
            self.record(account, &progress, Some(reason));
            return Next::Abort { reset: true };
        }
        if reason == Reason::UpstreamCancelled && self.is_understood(&progress) {
            progress.status = if progress.is_answered() { progress.status } else { reason.status() };
            self.record(account, &progress, Some(reason));
            // CANCEL, after the part of the response that was sent.
            self.io.writer.stream().reset_on_close();
            return Next::Abort { reset: false };
        }
        if progress.is_answered() {
            self.record(account, &progress, Some(reason));
            return Next::Abort { reset: progress.sent == Sent::CloseDelimited };
        }
        let whole = transfer.is_done();
        let keep_alive = whole && reason.side() != Side::Downstream && self.may_continue();
        let keep_alive = self.answer(account, &Local::reason(reason), keep_alive, &mut progress).await;
        self.record(account, &progress, Some(reason));
        if keep_alive { Next::KeepAlive } else { self.last_answer(transfer) }
    }

    /// Sends the file that the application named in place of a body.
    #[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end here")]
    async fn send_handed_over(
        &mut self,
        policy: &Policy<'_>,
        account: &Account,
        progress: Progress,
        told: &ReplacedAnswer,
        transfer: &Transfer,
    ) -> Next {
        let Some(handoff) = policy.handoff else {
            return self.reject(account, Reason::SendfileRefused).await;
        };
        let how = (policy.response_edits, policy.body_idle_timeout_ms);
        Box::pin(self.send_named(handoff, told, how, account, (transfer, progress))).await
    }

    /// Sends an error page in place of the application's own.
    #[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end here")]
    async fn send_page(
        &mut self,
        policy: &Policy<'_>,
        account: &Account,
        mut progress: Progress,
        replaced: ReplacedAnswer,
        transfer: &Transfer,
    ) -> Next {
        let keep_alive = transfer.is_done() && self.may_continue();
        let edits = policy.response_edits.map(without_content);
        let local = Local::page_for(replaced.status, replaced.fields).edited(edits.as_ref());
        let keep_alive = self.answer(account, &local, keep_alive, &mut progress).await;
        self.record(account, &progress, None);
        if keep_alive { Next::KeepAlive } else { self.last_answer(transfer) }
    }

    /// Whether the client handles a cancelled stream better than a response from sluice: a gRPC client takes a 502 for
    /// an outage, but this may only be its own deadline (PROTOCOL-HTTP2 of gRPC, "Errors").
    fn is_understood(&self, progress: &Progress) -> bool {
        let is_grpc = || {
            self.session.head.get(b"content-type").is_some_and(|kind| kind.starts_with(b"application/grpc"))
        };
        self.session.head.version().is_framed() && (progress.is_answered() || is_grpc())
    }

    /// Runs the tunnel of an accepted upgrade; the exchange is recorded at its end.
    #[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end here")]
    async fn tunnel(
        &mut self,
        worker: &Worker,
        policy: &Policy<'_>,
        mut acquired: Acquired,
        account: &Account,
        mut progress: Progress,
    ) -> Next {
        // The kernel joins tunnels by other means. It has seen everything sent to the client before this response.
        self.peer.direct.leave(worker.resources().dialer.direct(), &self.io.writer);
        let connection = &mut acquired.connection;
        let ends = tunnel::Ends {
            downstream: (&mut self.io.reader, &mut self.io.writer),
            upstream: (&mut connection.reader, &mut connection.writer),
        };
        let idle_ms = policy.cluster.config.tunnel_idle_timeout_ms;
        let tunnel = tunnel::run(ends, &self.io.deadline, idle_ms, worker.tunnels());
        let drained = async {
            match policy.request.entered {
                Some(entered) => entered.drained().await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = tunnel => outcome,
            () = drained => {
                self.record(account, &progress, Some(Reason::TargetDrained));
                return Next::Abort { reset: false };
            }
        };
        progress.bytes_in += outcome.bytes_up;
        progress.bytes_out += outcome.bytes_down;
        progress.path = Some(outcome.path);
        self.record(account, &progress, outcome.reason);
        Next::Abort { reset: outcome.broken }
    }
}

/// The target that is sent to the origin.
pub(super) fn sent_target<'h>(entry: &RouteEntry, head: &'h RequestHead) -> Cow<'h, [u8]> {
    let target = head.path_and_query();
    if target == b"*" {
        return Cow::Borrowed(target);
    }
    if let Some(rewrite) = &entry.rewrite {
        let (path, query) = head.split_target();
        // A request whose new path is not usable was refused.
        return rewrite.apply(path, query).map_or(Cow::Borrowed(b"/"), Cow::Owned);
    }
    let target = match entry.config.strip_prefix {
        true => strip_prefix(&entry.config.path_prefix, target),
        false => Cow::Borrowed(target),
    };
    match &entry.config.add_prefix {
        Some(prefix) => Cow::Owned([prefix.as_bytes(), &without_dot_segments(target)].concat()),
        None if entry.resolves_dots => without_dot_segments(target),
        None => target,
    }
}
