//! The path of the response: interim heads, the head, the body.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Instant;

use sluice_cache::{Admission, StoredResponse};
use sluice_core::error::Reason;
use sluice_http::{
    Expect, Framing, HeadLimits, HeadScanner, RequestHead, ResponseForward, ResponseHead, Scan, Version,
    response_framing,
};
use sluice_net::buffers::SMALL_BYTES;
use sluice_net::stream::{Reader, Writer};

use super::answer::{Answer, debug_fields, forward_head};
use super::discard::discard;
use super::encoded::{EncodedAnswer, Encoding};
use super::hold::{self, HeldAnswer};
use super::keep::{self, KeepMode};
use super::transfer::download_reason;
use super::{Failed, ReplacedAnswer, SharedState, chunk_limits, direct};
use crate::body::{BodyError, Transfer, copy};
use crate::bypass::Joined;
use crate::cache::{CacheStatus, Fill, Judgement};
use crate::compress::trailers_of_bytes;
use crate::direct::{Armed, Claimed, DirectAnswer, Rest};
use crate::files::{HANDOFF_ANSWERS, NamedFile};
use crate::opening::Opening;
use crate::progress::{Progress, Sent};

/// The upstream side.
pub(super) struct UpstreamSide<'a> {
    pub(super) reader: &'a mut Reader,
    pub(super) head: &'a mut ResponseHead,
    pub(super) scanner: &'a mut HeadScanner,
    /// Set when the connection may serve another exchange.
    pub(super) reusable: &'a mut bool,
    /// Whether it responded before it had the whole request, or without having requested an awaited body: it may parse
    /// the unread rest as the next request.
    pub(super) is_early: bool,
    /// If the connection is joined: notified of the first byte.
    pub(super) joined: Option<&'a Joined>,
    /// If the response may use direct return.
    pub(super) armed: Option<&'a Armed<'a>>,
}

/// What was received.
pub(super) enum ReceivedResponse {
    /// A complete response.
    Whole {
        /// Whether the client may send another request.
        keep_alive: bool,
    },
    /// A 101 that was requested; its head was forwarded.
    Upgrade,
    /// A complete response that used direct return.
    Direct(DirectAnswer),
    /// An error in place of which the client gets an error page.
    Replaced(Box<ReplacedAnswer>),
    /// A complete response, of which the client has received nothing.
    Held(Box<HeldAnswer>),
    /// The client gets a stored response.
    Cached(Arc<StoredResponse>, CacheStatus),
}

/// Receives one response and forwards it.
pub(super) async fn run(
    shared: &SharedState<'_>,
    answer: &Answer<'_>,
    from: &mut UpstreamSide<'_>,
    writer: &mut Writer,
    progress: &mut Progress,
) -> Result<ReceivedResponse, Failed> {
    let (mut interim, mut was_continued) = (0, false);
    loop {
        if let Some(rest) = receive_head(shared, from, progress).await? {
            return direct::go_on(shared, answer, from, writer, progress, rest).await;
        }
        match from.head.status() {
            101 => return upgrade(shared, answer, from, writer, progress).await,
            100..=199 => {
                interim += 1;
                if interim > shared.policy.cluster.config.interim_responses_max {
                    return Err(Reason::TooManyInterim.into());
                }
                was_continued |= from.head.status() == 100;
                pass_interim(shared, answer, from, writer, progress).await?;
            }
            _ => break,
        }
    }
    if shared.is_turned_back(from.head.status()) {
        return Err(Failed { turned_back: true, ..Reason::UpstreamClosed.into() });
    }
    // Before a byte goes on: its client may ask for what has changed as soon as it has the response.
    if let Some(change) = answer.change {
        change.forget(from.head).await;
    }
    let waited_for = answer.request.expect() == Expect::Continue && !was_continued;
    from.is_early = !shared.uploaded.get() || waited_for;
    let named = shared.policy.handoff.and_then(|_| NamedFile::of(from.head));
    let is_replaced = shared.policy.replaced.binary_search(&from.head.status()).is_ok();
    let kept = match shared.policy.cache.fill() {
        Some(fill) => keep::judge(shared, fill, answer, from, named.is_some() || is_replaced),
        None => Judgement::Pass,
    };
    if matches!(kept, Judgement::Pass) && shared.policy.cache.fill().is_some_and(|fill| fill.is_detached()) {
        return Err(Reason::ClientGone.into());
    }
    if let Judgement::Use(stored, status) = kept {
        shared.note_head();
        discard(shared, answer.request.method(), from).await;
        return Ok(ReceivedResponse::Cached(stored, status));
    }
    if named.is_some() || is_replaced {
        shared.note_head();
        let replaced = match named {
            Some(file) => ReplacedAnswer::with_file(from.head, file),
            None => ReplacedAnswer::of(from.head),
        };
        discard(shared, answer.request.method(), from).await;
        return Ok(ReceivedResponse::Replaced(replaced));
    }
    let admission = if let Judgement::Keep(admission) = kept { Some(admission) } else { None };
    respond(shared, answer, (from, admission), writer, progress).await
}

/// Receives until a complete head has been parsed, and removes it from the reader. If the start of the response used
/// direct return, receives until its rest arrives.
async fn receive_head(
    shared: &SharedState<'_>,
    from: &mut UpstreamSide<'_>,
    progress: &mut Progress,
) -> Result<Option<Rest>, Failed> {
    let config = &shared.policy.cluster.config;
    let limits = HeadLimits {
        head_bytes_max: config.response_head_bytes_max,
        headers_max: config.response_headers_max,
        target_bytes_max: config.response_head_bytes_max,
    };
    let bad = |_| Failed::from(Reason::BadResponse);
    if from.reader.stream().is_channel() {
        let received = poll_fn(|cx| from.reader.poll_head(cx, from.head, &limits)).await;
        let silent = progress.times.first_byte_at.is_none();
        let read = received.map_err(|_| Failed { silent, ..Reason::UpstreamClosed.into() })?;
        progress.times.first_byte_at.get_or_insert_with(Instant::now);
        return read.map(|()| None).map_err(bad);
    }
    loop {
        if let Scan::Complete(length) = from.scanner.scan(from.reader.data(), &limits).map_err(bad)? {
            from.head.parse(&from.reader.data()[..length], &limits).map_err(bad)?;
            from.reader.consume(length);
            from.scanner.reset();
            return Ok(None);
        }
        let received = direct::receive(from.reader, from.armed).await;
        let claimed = match from.armed.take() {
            Some(armed) => direct::claim(armed).await,
            None => Claimed::Bytes,
        };
        if !received && matches!(claimed, Claimed::Bytes) {
            let silent = progress.times.first_byte_at.is_none();
            return Err(Failed { silent, ..Reason::UpstreamClosed.into() });
        }
        if let Some(joined) = from.joined {
            joined.answered();
        }
        match claimed {
            Claimed::Bytes => _ = progress.times.first_byte_at.get_or_insert_with(Instant::now),
            Claimed::Head(head, at) => {
                progress.times.first_byte_at = Some(at);
                from.head.parse(&head, &limits).map_err(bad)?;
                return Ok(None);
            }
            Claimed::Rest(rest) => return Ok(Some(rest)),
        }
    }
}

/// Forwards a 1xx; HTTP/1.0 clients do not support them (RFC 9110 15.2).
async fn pass_interim(
    shared: &SharedState<'_>,
    answer: &Answer<'_>,
    from: &UpstreamSide<'_>,
    writer: &mut Writer,
    progress: &mut Progress,
) -> Result<(), Failed> {
    shared.deadline.touch();
    // An interim response has no body, so it must not have contradictory or invalid framing.
    response_framing(from.head, answer.request.method()).map_err(|_| Failed::from(Reason::BadResponse))?;
    if answer.request.version() == Version::Http10 {
        return Ok(());
    }
    // Only a final response names a file; nobody else gets to see the name.
    if shared.policy.handoff.is_some() && NamedFile::of(from.head).is_some() {
        return Ok(());
    }
    let forward = ResponseForward { via: shared.policy.via, ..forward_head(answer, Framing::None, true) };
    send_head(shared, from.head, &forward, writer, progress).await
}

async fn upgrade(
    shared: &SharedState<'_>,
    answer: &Answer<'_>,
    from: &UpstreamSide<'_>,
    writer: &mut Writer,
    progress: &mut Progress,
) -> Result<ReceivedResponse, Failed> {
    if !was_asked_for(answer.request, from.head) {
        return Err(Reason::UnaskedUpgrade.into());
    }
    let tunnels_max = shared.policy.cluster.config.tunnels_max;
    if answer.endpoint.tunnels() >= tunnels_max {
        return Err(Reason::TooManyTunnels.into());
    }
    shared.note_head();
    progress.status = 101;
    progress.logged = shared.policy.logged_values(from.head);
    progress.sent = Sent::Head;
    let debug = shared.policy.request.debug.as_ref().map(|facts| facts.fields(progress));
    let [timing, facts] = debug_fields(debug.as_ref());
    let forward = ResponseForward {
        upgrade: true,
        via: shared.policy.via,
        request_id: shared.policy.request.request_id.as_deref(),
        edits: shared.policy.response_edits,
        extra: [None, timing, facts, None, None],
        ..forward_head(answer, Framing::None, true)
    };
    send_head(shared, from.head, &forward, writer, progress).await?;
    Ok(ReceivedResponse::Upgrade)
}

/// Whether the 101 names only protocols that the request named, and at least one: an origin must not switch to any
/// other (RFC 9110 7.8), and the client could not tell what the tunnel carries.
fn was_asked_for(request: &RequestHead, response: &ResponseHead) -> bool {
    let (Some(asked), Some(given)) = (request.upgrade(), response.upgrade()) else {
        return false;
    };
    protocols(given).all(|name| protocols(asked).any(|other| name.eq_ignore_ascii_case(other)))
}

fn protocols(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

async fn send_head(
    shared: &SharedState<'_>,
    head: &ResponseHead,
    forward: &ResponseForward<'_>,
    writer: &mut Writer,
    progress: &mut Progress,
) -> Result<(), Failed> {
    let gone = |_| Failed::from(Reason::ClientGone);
    writer.settle(shared.deadline).await.map_err(gone)?;
    let mut opening = Opening::to(writer);
    opening.encode_response(head, forward);
    progress.bytes_out += opening.size() as u64;
    let bytes = opening.begin(writer, false).map_err(gone)?;
    writer.submit(bytes, 0);
    writer.quieten(shared.deadline).await.map_err(gone)
}

/// Forwards the final head and the body.
async fn respond(
    shared: &SharedState<'_>,
    answer: &Answer<'_>,
    (from, admission): (&mut UpstreamSide<'_>, Option<Box<Admission>>),
    writer: &mut Writer,
    progress: &mut Progress,
) -> Result<ReceivedResponse, Failed> {
    let policy = shared.policy;
    let method = answer.request.method();
    let framing = response_framing(from.head, method).map_err(|_| Failed::from(Reason::BadResponse))?;
    progress.logged = policy.logged_values(from.head);
    let mut keeper = None;
    if let Some((fill, admission)) = policy.cache.fill().zip(admission) {
        match keep::begin(fill, admission, framing) {
            Some(KeepMode::Whole(body)) => {
                shared.note_head();
                shared.deadline.set(policy.body_idle_timeout_ms);
                let stored = Box::pin(body.receive(shared, from, framing)).await?;
                return Ok(ReceivedResponse::Cached(stored, fill.status()));
            }
            Some(KeepMode::Along(body)) => keeper = Some(body),
            None if fill.is_detached() => return Err(Reason::ClientGone.into()),
            None => {}
        }
    }
    if keeper.is_none() && hold::is_held(shared, from.head, framing) {
        let is_framed = writer.stream().is_channel();
        let held = Box::pin(hold::hold(shared, answer, (from, is_framed), progress, framing)).await?;
        return Ok(ReceivedResponse::Held(Box::new(held)));
    }
    let (resources, edits) = (shared.resources, policy.response_edits);
    // Nobody reads what a request behind a client's back brings.
    let is_detached = policy.cache.fill().is_some_and(Fill::is_detached);
    let config = policy.compress.filter(|_| !is_detached);
    let encoding = Encoding { config, resources, edits, ready: None };
    let mut encoded = EncodedAnswer::of(&encoding, answer.request, from.head, framing);
    let encoder = encoded.as_mut().and_then(EncodedAnswer::take_encoder);
    let is_encoded = encoder.is_some();
    let towards = match &encoder {
        // Nobody knows the length of what is to be encoded.
        Some(_) => Framing::Stream.towards(answer.request.version()),
        None => framing.towards(answer.request.version()),
    };
    // A request that is incomplete by now leaves the client's connection in the middle of a body. A client that is
    // notified of a drain does not send its next request into the close.
    let keep_alive = answer.keep_alive
        && shared.is_received()
        && !shared.resources.ends_connections()
        && towards != Framing::CloseDelimited;
    shared.note_head();
    shared.deadline.set(policy.body_idle_timeout_ms);
    progress.status = from.head.status();

    writer.settle(shared.deadline).await.map_err(|_| Failed::from(Reason::ClientGone))?;
    let mut opening = Opening::to(writer);
    answer.encode_final(&mut opening, from.head, policy, progress, (towards, keep_alive), encoded.as_deref());
    drop(encoded);
    let head_bytes = opening.size() as u64;
    let transfer = Transfer::new(framing, towards, chunk_limits(shared.limits), u64::MAX).encoded(encoder);
    let mut transfer = hold::limited(shared, transfer)?;
    if shared.policy.handoff.is_some() || is_encoded {
        transfer.refuse_trailers(|| {
            let of_bytes = trailers_of_bytes().filter(|_| is_encoded);
            of_bytes.chain(HANDOFF_ANSWERS.map(|name| name.as_bytes().to_vec())).collect()
        });
    }
    // The received part of the body is checked before the head is sent: a fault found here is still a clean 502.
    from.reader.peek(SMALL_BYTES);
    let bad = |error| match error {
        BodyError::Unencodable => Failed::from(Reason::LocalResource),
        _ => Failed::from(Reason::BadResponse),
    };
    let mut passing = None;
    match keeper {
        None => transfer.take(from.reader, &mut opening.bytes).map_err(bad)?,
        Some(keeper) => {
            let limits = chunk_limits(shared.limits);
            let receiving = Transfer::new(framing, Framing::CloseDelimited, limits, u64::MAX);
            let (mut receiving, mut first) = (hold::limited(shared, receiving)?, Vec::new());
            receiving.take(from.reader, &mut first).map_err(bad)?;
            transfer = transfer.received_plain();
            passing = Some(Box::new((keeper, first, receiving)));
        }
    }
    progress.sent = if towards == Framing::CloseDelimited { Sent::CloseDelimited } else { Sent::Head };
    let out = opening.begin(writer, towards.is_empty()).map_err(|_| Failed::from(Reason::ClientGone))?;
    let buffers = &shared.resources.buffers;
    let copied = match passing {
        None => copy(from.reader, writer, &mut transfer, out, shared.deadline, buffers).await,
        // Boxed, so that other exchanges do not carry its memory.
        Some(passing) => {
            let (body, first, receiving) = *passing;
            let transfers = (first, receiving, &mut transfer);
            Box::pin(body.pass(shared, (from, &mut *writer), transfers, out)).await
        }
    };
    progress.bytes_out += head_bytes + transfer.sent_bytes();
    copied.map_err(download_reason)?;
    if !writer.is_quiet() {
        writer.quieten(shared.deadline).await.map_err(|_| Failed::from(Reason::ClientGone))?;
        // The lease of the copy no longer covers the buffer of a large piece.
        writer.shrink(SMALL_BYTES);
    }
    *from.reusable = from.head.keep_alive() && !from.is_early && framing != Framing::CloseDelimited;
    Ok(ReceivedResponse::Whole { keep_alive })
}
