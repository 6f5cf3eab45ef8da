//! A client's HTTP/3 connection: several concurrent streams, each with a request. Its address may change meanwhile.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use h3::client::{RequestStream, SendRequest};
use h3::error::{Code, StreamError};
use h3_quinn::{BidiStream, OpenStreams, RecvStream, SendStream};
use quinn::{ClientConfig, Connection, Endpoint, TransportConfig};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::mode::Mode;
use super::super::plan::Plan;
use super::http2::request;
use super::judge::{End, Head, Judge};
use super::tls::NAME;
use super::{Birth, PATIENCE, Source, watched};

const STREAMS: usize = 8;
/// A narrow client makes sluice wait.
const WINDOW_BYTES: u32 = 64 << 10;

type Stream = RequestStream<BidiStream<Bytes>, Bytes>;
type Sending = RequestStream<SendStream<Bytes>, Bytes>;
type Receiving = RequestStream<RecvStream, Bytes>;

/// Connects, and sends requests until the connection or the storm is over.
pub(super) async fn run(source: &Rc<Source>, birth: Birth, mut random: fastrand::Rng) {
    let Some((endpoint, connection)) = connect(source, birth, &mut random).await else {
        return;
    };
    let Ok((mut driver, sender)) = h3::client::new(h3_quinn::Connection::new(connection)).await else {
        return;
    };
    // Its end also ends its streams.
    let driver =
        tokio::task::spawn_local(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    let moves = random.u8(..4) == 0;
    let history = Rc::default();
    let mut streams = JoinSet::new();
    for _ in 0..random.usize(1..60) {
        if source.context.findings.is_over() {
            break;
        }
        while streams.len() >= STREAMS {
            streams.join_next().await;
        }
        if moves && random.u8(..8) == 0 {
            // As behind a NAT that forgot it.
            let _ = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| endpoint.rebind(socket));
        }
        let judge = Judge::new(&source.context, source.next_plan(), "(HTTP/3)".to_owned(), &history);
        streams.spawn_local(exchange(sender.clone(), judge, random.fork()));
        sleep(source.pause(&mut random)).await;
        if driver.is_finished() {
            break;
        }
    }
    if random.u8(..5) > 0 {
        while streams.join_next().await.is_some() {}
    }
    drop(streams);
    driver.abort();
}

/// A failure is a fault, because a process always listens.
async fn connect(
    source: &Source,
    birth: Birth,
    random: &mut fastrand::Rng,
) -> Option<(Endpoint, Connection)> {
    let doors = &source.context.doors;
    let config = config(doors.connector.quic(), random);
    let connecting = async {
        let endpoint = Endpoint::client(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let connection = endpoint.connect_with(config, doors.secure, NAME)?.await?;
        anyhow::Ok((endpoint, connection))
    };
    match connecting.await {
        Ok(connected) => Some(connected),
        Err(_) if birth.is_late() && birth.is_of_before(&source.context) => None,
        Err(error) => {
            let what = format!("client {} gets no QUIC connection: {error:#}", source.client);
            source.context.findings.fault(what);
            None
        }
    }
}

/// One in three connections takes little at a time.
fn config(mut config: ClientConfig, random: &mut fastrand::Rng) -> ClientConfig {
    if random.u8(..3) == 0 {
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(WINDOW_BYTES.into());
        transport.receive_window((STREAMS as u32 * WINDOW_BYTES).into());
        config.transport_config(Arc::new(transport));
    }
    config
}

/// One request; its stream may be cancelled during the response.
async fn exchange(mut sender: SendRequest<OpenStreams, Bytes>, mut judge: Judge, mut random: fastrand::Rng) {
    let leaves = (random.u8(..6) == 0).then(|| Duration::from_millis(random.u64(..40)));
    let plan = judge.plan;
    let body = Bytes::from(plan.upload_body());
    let asked = timeout(PATIENCE, sender.send_request(request("https", &plan, body.len()))).await;
    let Ok(Ok(stream)) = asked else {
        return judge.end(End::Nothing { excused: asked.is_ok() });
    };
    let (mut sending, mut receiving) = Stream::split(stream);
    let heard = judge.heard();
    let asking = ask((&mut sending, &mut receiving), &plan, body, &mut judge, &mut random);
    let end = match watched(leaves, &heard, asking).await {
        Some(end) => end,
        None if leaves.is_some() => End::Abandoned,
        None => {
            judge.hang();
            End::Cut
        }
    };
    if end != End::Complete {
        // Dropped, its body would look complete. The receiving half says that it stops when it is dropped.
        sending.stop_stream(Code::H3_REQUEST_CANCELLED);
    }
    judge.end(end);
}

async fn ask(
    (sending, receiving): (&mut Sending, &mut Receiving),
    plan: &Plan,
    body: Bytes,
    judge: &mut Judge,
    random: &mut fastrand::Rng,
) -> End {
    if plan.mode == Mode::EarlyWaiting {
        return answer(receiving, judge, Some((sending, body))).await;
    }
    let upload = async {
        // The response shows why it stopped.
        let _ = send(sending, body, random).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        end = answer(receiving, judge, None) => end,
        () = upload => End::Cut,
    }
}

async fn send(stream: &mut Sending, mut body: Bytes, random: &mut fastrand::Rng) -> Result<(), StreamError> {
    while !body.is_empty() {
        let piece = body.split_to(random.usize(1..=body.len()));
        stream.send_data(piece).await?;
        if random.u8(..4) == 0 {
            sleep(Duration::from_millis(random.u64(..4))).await;
        }
    }
    stream.finish().await
}

/// Reads the response. `rest` is sent when its head has arrived.
async fn answer(stream: &mut Receiving, judge: &mut Judge, rest: Option<(&mut Sending, Bytes)>) -> End {
    let response = loop {
        let response = match stream.recv_response().await {
            Ok(response) => response,
            Err(error) => return End::Nothing { excused: is_orderly(&error) },
        };
        if !response.status().is_informational() {
            break response;
        }
        let token = response.headers().get("x-token").map(|token| token.as_bytes());
        judge.interim(&Head { status: response.status().as_u16(), token, idle: false, coding: None });
    };
    let (head, ()) = response.into_parts();
    let token = head.headers.get("x-token").map(|token| token.as_bytes());
    let idle = head.headers.contains_key("x-idle");
    let coding = head.headers.get("content-encoding").map(|coding| coding.as_bytes());
    if !judge.head(&Head { status: head.status.as_u16(), token, idle, coding }) {
        return End::Cut;
    }
    if let Some((sending, bytes)) = rest {
        // It fits into the first window; if it is not wanted any more, that is fine.
        if sending.send_data(bytes).await.is_ok() {
            let _ = sending.finish().await;
        }
    }
    receive(stream, judge).await
}

async fn receive(stream: &mut Receiving, judge: &mut Judge) -> End {
    loop {
        match stream.recv_data().await {
            Ok(Some(mut data)) => {
                if !judge.body(&data.copy_to_bytes(data.remaining())) {
                    return End::Cut;
                }
            }
            Ok(None) => break,
            Err(_) => return End::Cut,
        }
    }
    if stream.recv_trailers().await.is_ok() { End::Complete } else { End::Cut }
}

/// Whether the other side has said that it did not process the request.
fn is_orderly(error: &StreamError) -> bool {
    match error {
        StreamError::RemoteTerminate { code, .. } => *code == Code::H3_REQUEST_REJECTED,
        other => other.is_h3_no_error(),
    }
}
