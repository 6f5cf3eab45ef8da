//! An origin's HTTP/2 connection: the behaviours that it can express, with a task for each stream.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::{AsyncWriteExt, sink};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::findings::Findings;
use super::super::mode::Mode;
use super::super::plan::Plan;
use super::super::token::Token;
use super::script::STALL;

/// How long a response may wait here for a slow client.
const ON_ITS_WAY: Duration = Duration::from_secs(60);
/// How much longer a body is than its head says.
const LONGER_BYTES: usize = 100;
/// How long sluice may take to close its side.
const LINGER: Duration = Duration::from_secs(10);
const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// How a connection should end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leave {
    Stay,
    /// GOAWAY, and running streams continue.
    Drain,
    Abruptly,
}

/// Shared by the streams of a connection.
struct Shared {
    findings: Arc<Findings>,
    leave: Cell<Leave>,
    /// Running responses, and when completed ones were passed to the connection.
    answers: RefCell<HashMap<Token, Option<Instant>>>,
}

/// The connection, as long as sluice has not closed it: unsent bytes are lost with it. It is dropped before the socket.
struct Presence(Option<Rc<Shared>>);

impl Drop for Presence {
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        let lost = |given: &Option<Instant>| given.is_none_or(|at| at.elapsed() < ON_ITS_WAY);
        let answers = shared.answers.borrow();
        let lost = answers.iter().filter(|(_, given)| lost(given));
        lost.for_each(|(token, _)| shared.findings.break_off(*token));
    }
}

/// Serves until one side ends.
///
/// # Errors
/// When the connection breaks, which its client sees too.
pub(super) async fn serve(stream: TcpStream, findings: Arc<Findings>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    let mut kept = TcpStream::from_std(stream.try_clone()?)?;
    let stream = TcpStream::from_std(stream)?;
    let mut builder = server::Builder::new();
    // Leaving clients are part of the storm, not an attack.
    builder
        .max_pending_accept_reset_streams(usize::MAX)
        .max_local_error_reset_streams(None)
        .data_frame_budget(usize::MAX);
    builder.initial_window_size(STREAM_WINDOW_BYTES).initial_connection_window_size(8 * STREAM_WINDOW_BYTES);
    let mut connection = builder.handshake::<_, Bytes>(stream).await.map_err(io::Error::other)?;
    let shared = Rc::new(Shared { findings, leave: Cell::new(Leave::Stay), answers: RefCell::default() });
    let mut presence = Presence(Some(Rc::clone(&shared)));
    let mut streams = JoinSet::new();
    loop {
        match shared.leave.get() {
            Leave::Stay => {}
            Leave::Drain => {
                connection.graceful_shutdown();
                shared.leave.set(Leave::Stay);
            }
            Leave::Abruptly => return Ok(()),
        }
        tokio::select! {
            accepted = connection.accept() => {
                let (request, respond) = match accepted {
                    Some(Ok(accepted)) => accepted,
                    ended => {
                        if let Some(Err(error)) = ended {
                            shared.findings.note(format!("an origin's HTTP/2 connection ended by: {error}"));
                        }
                        drop(connection);
                        // If it were closed with unread bytes, the socket would discard sent ones.
                        let _ = kept.shutdown().await;
                        let _ = timeout(LINGER, tokio::io::copy(&mut kept, &mut sink())).await;
                        presence.0 = None;
                        return Ok(());
                    }
                };
                streams.spawn_local(answer(request, respond, Rc::clone(&shared)));
            }
            // A finished stream may have requested the connection's end.
            Some(_) = streams.join_next() => {}
        }
    }
}

async fn answer(request: Request<RecvStream>, respond: SendResponse<Bytes>, shared: Rc<Shared>) {
    let Some(plan) = Plan::parse(request.method().as_str(), request.uri().path()) else {
        return;
    };
    shared.answers.borrow_mut().insert(plan.token, None);
    let mut body = request.into_body();
    if plan.mode.is_early() || receive(&plan, &mut body, &shared).await.is_ok() {
        // A failure here means that sluice has reset the stream.
        let _ = respond_as(&plan, respond, &shared).await;
    }
    shared.answers.borrow_mut().insert(plan.token, Some(Instant::now()));
}

/// Reads the request's body and checks each byte.
async fn receive(plan: &Plan, body: &mut RecvStream, shared: &Shared) -> Result<(), h2::Error> {
    let mut offset = 0;
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        if let Some(at) = plan.token.difference(offset, &data) {
            let (token, mode) = (plan.token, plan.mode);
            shared
                .findings
                .fault(format!("origin: the body of request {token} ({mode:?}) differs at byte {at}"));
        }
        offset += data.len();
    }
    Ok(())
}

async fn respond_as(plan: &Plan, mut respond: SendResponse<Bytes>, shared: &Shared) -> Result<(), h2::Error> {
    let random = &mut plan.token.choices();
    match plan.mode {
        Mode::Late => sleep(Duration::from_millis(random.u64(20..400))).await,
        Mode::Stall => sleep(STALL).await,
        Mode::EarlyHints | Mode::Interims => {
            let hint = Response::builder().status(103).header("x-token", plan.token.to_string());
            respond.send_informational(hint.body(()).expect("these are valid fields"))?;
        }
        Mode::NoAnswer | Mode::Reset | Mode::HalfHead | Mode::Garbage => {
            let reasons = [Reason::INTERNAL_ERROR, Reason::REFUSED_STREAM, Reason::CANCEL, Reason::NO_ERROR];
            respond.send_reset(reasons[random.usize(..reasons.len())]);
            return Ok(());
        }
        Mode::BadChunk => {
            shared.leave.set(Leave::Abruptly);
            return Ok(());
        }
        Mode::UnannouncedClose | Mode::IdleClose | Mode::AnnouncedClose => shared.leave.set(Leave::Drain),
        _ => {}
    }
    let more = if plan.mode == Mode::SurplusLonger { LONGER_BYTES } else { 0 };
    let bytes = plan.answer_bytes();
    let body = plan.token.body(if bytes == 0 { 0 } else { bytes + more });
    let stream = respond.send_response(head(plan), body.is_empty())?;
    if body.is_empty() {
        return Ok(());
    }
    // If the rest of the request was not read, the library resets the stream after the response.
    send(plan, stream, Bytes::from(body), random).await
}

fn head(plan: &Plan) -> Response<()> {
    let mut response =
        Response::builder().status(plan.mode.status()).header("x-token", plan.token.to_string());
    response = response.header("cache-control", "max-age=1, stale-while-revalidate=1");
    let length = match plan.mode {
        Mode::Empty => Some(0),
        Mode::NoContent | Mode::SurplusNoContent | Mode::Chunked | Mode::Trailers | Mode::CloseDelimited => {
            None
        }
        Mode::Short => Some(plan.size + 9),
        _ => Some(plan.size),
    };
    if let Some(length) = length {
        response = response.header("content-length", length);
    }
    response.body(()).expect("these are valid fields")
}

async fn send(
    plan: &Plan,
    mut stream: SendStream<Bytes>,
    mut body: Bytes,
    random: &mut fastrand::Rng,
) -> Result<(), h2::Error> {
    let breaks = matches!(plan.mode, Mode::ShortReset | Mode::ChunkCut | Mode::StallAmid);
    let stop = if breaks { random.usize(1..=body.len()) } else { 0 };
    let pieces = matches!(plan.mode, Mode::Pieces | Mode::Dribble | Mode::Chunked | Mode::Bytewise);
    while body.len() > stop {
        let left = body.len() - stop;
        let most = if pieces { random.usize(1..=left) } else { left };
        stream.reserve_capacity(most);
        let Some(room) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
            return Ok(());
        };
        let data = body.split_to(room?.min(most));
        let last = body.is_empty() && plan.mode != Mode::Trailers;
        stream.send_data(data, last)?;
        if plan.mode == Mode::Dribble {
            sleep(Duration::from_millis(random.u64(..30))).await;
        }
    }
    match plan.mode {
        Mode::Trailers => {
            let sum = HeaderValue::from_str(&plan.token.to_string()).expect("these are digits");
            stream.send_trailers(HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), sum)]))?;
        }
        Mode::ShortReset | Mode::ChunkCut => stream.send_reset(Reason::INTERNAL_ERROR),
        Mode::StallAmid => sleep(STALL).await,
        _ => {}
    }
    Ok(())
}
