//! A client's HTTP/2 connection: several concurrent streams, each with a request.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::mode::Mode;
use super::super::plan::{Method, Plan, Upload};
use super::judge::{End, Head, Judge};
use super::tls::NAME;
use super::{PATIENCE, Source, watched};

const STREAMS: usize = 8;
const WINDOW_BYTES: u32 = 64 << 10;

/// Sends requests over `stream` until the connection or the storm is over.
pub(super) async fn run<S: AsyncRead + AsyncWrite + Unpin + 'static>(
    source: &Rc<Source>,
    stream: S,
    over: &'static str,
    mut random: fastrand::Rng,
) {
    let mut builder = client::Builder::new();
    builder.initial_window_size(WINDOW_BYTES).initial_connection_window_size(STREAMS as u32 * WINDOW_BYTES);
    let Ok(Ok((sender, connection))) = timeout(PATIENCE, builder.handshake::<_, Bytes>(stream)).await else {
        return;
    };
    let driver = tokio::task::spawn_local(async move {
        // Its end also ends its streams.
        let _ = connection.await;
    });
    let history = Rc::default();
    let mut streams = JoinSet::new();
    for _ in 0..random.usize(1..60) {
        if source.context.findings.is_over() {
            break;
        }
        while streams.len() >= STREAMS {
            streams.join_next().await;
        }
        let Ok(sender) = sender.clone().ready().await else {
            break;
        };
        let judge = Judge::new(&source.context, source.next_plan(), format!("({over})"), &history);
        streams.spawn_local(exchange(sender, judge, random.fork()));
        sleep(source.pause(&mut random)).await;
    }
    if random.u8(..5) > 0 {
        while streams.join_next().await.is_some() {}
    }
    drop(streams);
    driver.abort();
}

/// One request; its stream may be cancelled during the response.
async fn exchange(sender: SendRequest<Bytes>, mut judge: Judge, mut random: fastrand::Rng) {
    let leaves = (random.u8(..6) == 0).then(|| Duration::from_millis(random.u64(..40)));
    let heard = judge.heard();
    let asking = ask(sender, &mut judge, &mut random);
    let end = match watched(leaves, &heard, asking).await {
        Some(end) => end,
        None if leaves.is_some() => End::Abandoned,
        None => {
            judge.hang();
            End::Cut
        }
    };
    judge.end(end);
}

async fn ask(mut sender: SendRequest<Bytes>, judge: &mut Judge, random: &mut fastrand::Rng) -> End {
    let plan = judge.plan;
    let body = plan.upload_body();
    let Ok((response, mut stream)) = sender.send_request(request("http", &plan, body.len()), body.is_empty())
    else {
        return End::Nothing { excused: true };
    };
    let body = Bytes::from(body);
    if plan.mode == Mode::EarlyWaiting {
        let answered = answer(response, judge, Some((stream, body))).await;
        return answered;
    }
    let sending = async {
        if !body.is_empty() {
            // The response shows why it stopped.
            let _ = send(&mut stream, body, random).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        end = answer(response, judge, None) => end,
        () = sending => End::Cut,
    }
}

/// The head of a request.
pub(super) fn request(scheme: &str, plan: &Plan, body_bytes: usize) -> Request<()> {
    let method = match plan.method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
    };
    let uri = format!("{scheme}://{NAME}{}", plan.target());
    let mut request = Request::builder().method(method).uri(uri);
    if matches!(plan.upload, Upload::Counted(_)) {
        request = request.header("content-length", body_bytes);
    }
    if let Some(coding) = plan.accepts {
        request = request.header("accept-encoding", coding);
    }
    request.body(()).expect("these are valid fields")
}

async fn send(
    stream: &mut SendStream<Bytes>,
    mut body: Bytes,
    random: &mut fastrand::Rng,
) -> Result<(), h2::Error> {
    while !body.is_empty() {
        let most = random.usize(1..=body.len());
        stream.reserve_capacity(most);
        let Some(room) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
            return Ok(());
        };
        let data = body.split_to(room?.min(body.len()));
        stream.send_data(data, body.is_empty())?;
        if random.u8(..4) == 0 {
            sleep(Duration::from_millis(random.u64(..4))).await;
        }
    }
    Ok(())
}

/// Reads the response. `rest` is sent when its head has arrived.
async fn answer(
    response: ResponseFuture,
    judge: &mut Judge,
    rest: Option<(SendStream<Bytes>, Bytes)>,
) -> End {
    let response = match response.await {
        Ok(response) => response,
        Err(error) => {
            judge.fails(&error);
            return End::Nothing { excused: is_orderly(&error) };
        }
    };
    let (head, body) = response.into_parts();
    let token = head.headers.get("x-token").map(|token| token.as_bytes());
    let idle = head.headers.contains_key("x-idle");
    let coding = head.headers.get("content-encoding").map(|coding| coding.as_bytes());
    if !judge.head(&Head { status: head.status.as_u16(), token, idle, coding }) {
        return End::Cut;
    }
    if let Some((mut stream, bytes)) = rest {
        // It fits into the first window; if it is not wanted any more, that is fine.
        stream.reserve_capacity(bytes.len());
        let _ = stream.send_data(bytes, true);
        return receive(body, judge).await;
    }
    receive(body, judge).await
}

async fn receive(mut body: RecvStream, judge: &mut Judge) -> End {
    while let Some(data) = body.data().await {
        let data = match data {
            Ok(data) => data,
            Err(error) => {
                judge.fails(&error);
                return End::Cut;
            }
        };
        if !judge.body(&data) || body.flow_control().release_capacity(data.len()).is_err() {
            return End::Cut;
        }
    }
    if body.trailers().await.is_ok() { End::Complete } else { End::Cut }
}

/// Whether the other side has said that it did not process the request.
fn is_orderly(error: &h2::Error) -> bool {
    error.is_go_away() && error.reason() == Some(Reason::NO_ERROR)
        || error.reason() == Some(Reason::REFUSED_STREAM)
}
