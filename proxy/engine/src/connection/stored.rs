//! Responds with what a cache has stored.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use sluice_cache::{EncodedBody, StoredResponse};
use sluice_core::clock;
use sluice_core::error::Reason;
use sluice_http::{
    Coding, FieldEdits, Framing, Method, ResponseForward, ResponseHead, Trailers, read_http_date,
};
use sluice_net::buffers::{Appetite, SMALL_BYTES};

use super::account::Account;
use super::files::patience_ms;
use super::{Connection, Next};
use crate::body::Transfer;
use crate::cache::{CACHE_STATUS, CacheStatus};
use crate::compress::{Choice, choose};
use crate::exchange::{EncodedAnswer, Encoding, Policy, request_transfer};
use crate::files::{Plan, WholeContent};
use crate::opening::Opening;
use crate::progress::Progress;
use crate::snapshot::RouteEntry;

/// Fields about the body of a response, which one without it does not have.
const OF_BODY: [&[u8]; 5] =
    [b"content-type", b"content-encoding", b"content-language", b"content-length", b"content-range"];

/// A shorter body is copied, and sent with its head by the ring, together with those of other connections.
const SHARED_BYTES_MIN: u64 = 16 * 1024;
/// How much of a body is encoded before other connections get their turn.
const ENCODED_BYTES_STEP: usize = 64 * 1024;
/// How much of a body is sent before other connections get their turn.
const SHARED_BYTES_STEP: usize = 256 * 1024;

impl Connection {
    /// Responds with a stored response, or with what the conditions of the request come to. `of_exchange` is the policy
    /// of the exchange that has just brought it.
    #[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end here")]
    pub(super) async fn send_stored(
        &mut self,
        stored: &StoredResponse,
        (status, of_exchange): (CacheStatus, Option<&Policy<'_>>),
        entry: &RouteEntry,
        account: &Account,
        (transfer, mut progress): (&Transfer, Progress),
    ) -> Next {
        self.worker.metrics().count(status.event());
        self.io.deadline.set(patience_ms(entry));
        let settled = self.io.deadline.run(self.io.writer.settle(&self.io.deadline)).await;
        let keep_alive = transfer.is_done() && self.may_continue();
        let sent = match settled {
            Some(Ok(())) => {
                let plan = self.plan_of(stored, entry);
                let encoded = self.encoded(stored, &plan, entry, account).await;
                let content = match &encoded {
                    Some((coding, body)) => {
                        let plan = Plan::all(body.len() as u64, plan.status);
                        Content { plan, body, coding: Some(*coding) }
                    }
                    None => Content { plan, body: stored.body(), coding: None },
                };
                let (opening, body) = self.open_stored(
                    stored,
                    (&content, status),
                    (entry, account, of_exchange),
                    keep_alive,
                    &mut progress,
                );
                self.send_content(opening, &content, body, &mut progress).await
            }
            Some(Err(_)) => Err(Reason::ClientGone),
            None => Err(Reason::ClientStalled),
        };
        self.record(account, &progress, sent.err());
        match sent {
            Ok(()) if keep_alive => Next::KeepAlive,
            Ok(()) => self.last_answer(transfer),
            Err(_) => Next::Abort { reset: true },
        }
    }

    /// What of it the request gets.
    fn plan_of(&self, stored: &StoredResponse, entry: &RouteEntry) -> Plan {
        let length = stored.body().len() as u64;
        if stored.head().status() != 200 {
            return Plan::all(length, stored.head().status());
        }
        let kind = String::from_utf8_lossy(stored.head().get(b"content-type").unwrap_or_default());
        let mut validators = stored.validators();
        let head = &self.session.head;
        if head.get(b"range").is_none() {
            // RFC 9111 section 4.3.2: a client may name the time of a response that has none of its last change.
            let date = || stored.head().get(b"date").and_then(read_http_date);
            validators.modified_s = validators.modified_s.or_else(date);
        }
        // What a client has of it may be encoded, which a date does not tell.
        if entry.config.compress.is_some() && head.get(b"if-range").is_some() {
            validators.modified_s = None;
        }
        let content = WholeContent { validators, length, kind: &kind };
        let boundary = || format!("{:032x}", self.worker.with_random(|random| random.u128(..)));
        Plan::new(&content, head, clock::unix_s(), boundary)
    }

    /// The whole body in the coding that the client gets, if there is room to keep it: it is encoded once for all.
    async fn encoded(
        &self,
        stored: &StoredResponse,
        plan: &Plan,
        entry: &RouteEntry,
        account: &Account,
    ) -> Option<(Coding, Arc<EncodedBody>)> {
        let encoding = entry.encoding(&account.snapshot)?;
        let store = entry.cache.as_ref()?;
        let (body, head) = (stored.body(), &self.session.head);
        let is_whole = plan.has_content && plan.status == stored.head().status();
        if !is_whole || head.method() == Method::Head {
            return None;
        }
        let (config, limits, workers) = encoding;
        let length = body.len() as u64;
        let framing = Framing::Length(length);
        let Some(Choice::Encode(coding)) = choose(config, head, stored.head(), framing) else { return None };
        let form = coding as u8 * 4 + config.level as u8;
        if let Some(kept) = store.encoded(body, form) {
            return Some((coding, kept));
        }
        let kept = store.begin_encoded(body, form)?;
        let worker = Rc::clone(&self.worker);
        let compressors = &worker.resources().compressors;
        let mut encoder = compressors.encoder_to_keep(coding, config.level, length, (limits, workers))?;
        let mut out = Vec::new();
        for (at, piece) in body.chunks(ENCODED_BYTES_STEP).enumerate() {
            if at > 0 {
                tokio::task::yield_now().await;
            }
            out.extend_from_slice(encoder.write(piece).ok()?);
        }
        out.extend_from_slice(encoder.finish().ok()?);
        out.shrink_to_fit();
        kept.keep(Bytes::from(out)).map(|kept| (coding, kept))
    }

    /// Encodes the head, and says how the body is sent; `None` if there is none.
    #[expect(clippy::too_many_arguments, reason = "the parts of one response, which end here")]
    fn open_stored(
        &mut self,
        stored: &StoredResponse,
        (content, status): (&Content<'_>, CacheStatus),
        (entry, account, of_exchange): (&RouteEntry, &Account, Option<&Policy<'_>>),
        keep_alive: bool,
        progress: &mut Progress,
    ) -> (Opening, Option<Transfer>) {
        let worker = std::rc::Rc::clone(&self.worker);
        let plan = &content.plan;
        let snapshot = &account.snapshot;
        let own = if of_exchange.is_some() { None } else { self.own_edits(entry, account, None) };
        let edits = own.as_ref().map(|edits| &edits.response).or(entry.response_edits.as_ref());
        let edits = of_exchange.map_or(edits, |policy| policy.response_edits);
        let derived = (plan.status != stored.head().status()).then(|| derived(stored, plan)).flatten();
        let head = derived.as_ref().unwrap_or(stored.head());
        let has_body = plan.has_content && !matches!(plan.status, 204 | 304);
        let framing = if has_body { Framing::Length(plan.length()) } else { no_body(plan.status) };
        let is_head = self.session.head.method() == Method::Head;
        let encoded_framing = if is_head { Framing::None } else { framing };
        let encoding = Encoding {
            config: entry.encoding(snapshot),
            resources: worker.resources(),
            edits,
            ready: content.coding,
        };
        let mut encoded = EncodedAnswer::of(&encoding, &self.session.head, head, encoded_framing);
        let encoder = encoded.as_mut().and_then(EncodedAnswer::take_encoder);
        let version = self.session.head.version();
        let towards = if encoder.is_some() { Framing::Stream.towards(version) } else { framing };
        let age = stored.age_s(clock::unix_ms());
        // RFC 9111 section 5.1: one that was just made, or just validated, has none.
        let has_age = age > 0 || matches!(status, CacheStatus::Hit(_) | CacheStatus::Stale);
        let age = age.to_string();
        let told = status.value();
        let keeps = |name: &[u8]| !edits.is_some_and(|edits: &FieldEdits| edits.takes_out(name));
        let own_field = |name: &'static [u8], value| keeps(name).then_some((name, value));
        let debug = account.facts(snapshot).map(|facts| facts.fields(progress));
        let [timing, facts] = debug.as_ref().map_or([None; 2], |fields| fields.each().map(Some));
        let label = progress.endpoint.as_ref().map(|endpoint| endpoint.label.clone());
        let named = of_exchange.and_then(|policy| policy.cluster.config.endpoint_header.as_ref());
        let endpoint = named.zip(label.as_ref()).map(|(name, label)| (name.as_bytes(), label.as_bytes()));
        progress.status = plan.status;
        let forward = ResponseForward {
            framing: towards,
            keep_alive: keep_alive && towards != Framing::CloseDelimited,
            client_version: version,
            request_method: self.session.head.method(),
            via: snapshot.config.via,
            is_encoded: encoded.as_deref().is_some_and(EncodedAnswer::is_encoded),
            upgrade: false,
            edits: encoded.as_deref().map(|encoded| &encoded.edits).or(edits),
            extra: [
                endpoint,
                own_field(b"Age", age.as_bytes()).filter(|_| has_age),
                own_field(CACHE_STATUS, &told),
                timing,
                facts,
            ],
            request_id: snapshot.config.response_request_id.then_some(&*account.request_id),
            listener: self.listener.fields(self.session.head.version()),
        };
        let mut opening = Opening::to(&mut self.io.writer);
        opening.encode_response(head, &forward);
        progress.bytes_out += opening.size() as u64;
        let is_sent = has_body && !is_head;
        let body = is_sent.then(|| request_transfer(framing, self.limits()).unlimited().sent_as(towards));
        (opening, body.map(|body| body.encoded(encoder)))
    }

    /// Sends the head and the parts of the body.
    async fn send_content(
        &mut self,
        mut opening: Opening,
        Content { plan, body, .. }: &Content<'_>,
        transfer: Option<Transfer>,
        progress: &mut Progress,
    ) -> Result<(), Reason> {
        let Some(mut transfer) = transfer.filter(|transfer| !transfer.is_done()) else {
            opening.submit(&mut self.io.writer, Some(Trailers::NONE));
            return self.quieten().await;
        };
        if let Some(part) = plan.only_part().filter(|part| part.length() >= SHARED_BYTES_MIN)
            && self.io.writer.stream().is_socket()
            && transfer.is_plain()
        {
            let out = opening.begin(&mut self.io.writer, false).map_err(|_| Reason::ClientGone)?;
            return self.send_shared(out, &body[part.first as usize..=part.last as usize], progress).await;
        }
        let worker = std::rc::Rc::clone(&self.worker);
        let appetite = Appetite::new(&worker.resources().buffers, Some(plan.length()), SMALL_BYTES);
        let step = appetite.bytes();
        let broken = |_| Reason::LocalResource;
        let mut out = opening.begin(&mut self.io.writer, false).map_err(|_| Reason::ClientGone)?;
        for piece in plan.pieces(body).flat_map(|piece| piece.chunks(step)) {
            if out.len() >= step {
                self.submit(out, false).await?;
                out = self.io.writer.spare_for(step);
            }
            transfer.push(piece, &mut out).map_err(broken)?;
            if !transfer.is_plain() {
                // To encode it may take long, and make little of it.
                tokio::task::yield_now().await;
            }
        }
        progress.bytes_out += transfer.sent_bytes();
        self.submit(out, true).await?;
        self.quieten().await
    }
}

/// The body of a response from the cache.
struct Content<'c> {
    /// What of `body` is sent.
    plan: Plan,
    body: &'c [u8],
    /// The coding of `body`, if it is not the one that the application has sent.
    coding: Option<Coding>,
}

impl Connection {
    /// Sends the head and a body of which the cache keeps the only copy.
    async fn send_shared(
        &mut self,
        mut head: Vec<u8>,
        body: &[u8],
        progress: &mut Progress,
    ) -> Result<(), Reason> {
        let mut steps = body.chunks(SHARED_BYTES_STEP).peekable();
        while let Some(step) = steps.next() {
            let io = &mut self.io;
            let sent =
                io.deadline.run(io.writer.send_shared(std::mem::take(&mut head), step, &io.deadline)).await;
            sent.ok_or(Reason::ClientStalled)?.map_err(|_| Reason::ClientGone)?;
            progress.bytes_out += step.len() as u64;
            if steps.peek().is_some() {
                tokio::task::yield_now().await;
            }
        }
        self.quieten().await
    }
}

fn no_body(status: u16) -> Framing {
    if matches!(status, 204 | 304) { Framing::None } else { Framing::Length(0) }
}

/// The head of a response about a stored one: that it has not changed, or with parts of it.
fn derived(stored: &StoredResponse, plan: &Plan) -> Option<ResponseHead> {
    let is_of_body = |name: &[u8]| OF_BODY.iter().any(|other| name.eq_ignore_ascii_case(other));
    let length = plan.length().to_string();
    let kind = plan.boundary.as_ref().map(|boundary| format!("multipart/byteranges; boundary={boundary}"));
    let range = plan.content_range.as_deref().map(|range| (&b"Content-Range"[..], range));
    match plan.status {
        // RFC 9110 section 15.4.5.
        304 => {
            let has_tag = stored.head().get(b"etag").is_some();
            let is_dropped =
                |name: &[u8]| is_of_body(name) || (has_tag && name.eq_ignore_ascii_case(b"last-modified"));
            stored.head_with(304, |name| !is_dropped(name), &[])
        }
        206 => {
            let mut others = vec![(&b"Content-Length"[..], length.as_bytes())];
            others.extend(range);
            others.extend(kind.as_ref().map(|kind| (&b"Content-Type"[..], kind.as_bytes())));
            let is_kept = |name: &[u8]| {
                let is_type = name.eq_ignore_ascii_case(b"content-type") && kind.is_some();
                !is_type
                    && !name.eq_ignore_ascii_case(b"content-length")
                    && !name.eq_ignore_ascii_case(b"content-range")
            };
            stored.head_with(206, is_kept, &others)
        }
        status => {
            let others: Vec<_> = range.into_iter().chain([(&b"Content-Length"[..], &b"0"[..])]).collect();
            // Nothing of it is about this response, except when it was made and for which requests.
            let is_kept =
                |name: &[u8]| [&b"date"[..], b"vary"].iter().any(|kept| name.eq_ignore_ascii_case(kept));
            stored.head_with(status, is_kept, &others)
        }
    }
}
