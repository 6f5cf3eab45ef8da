//! Concurrent exchanges over one HTTP/2 connection, on networks that split it into pieces, with windows of any size.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::http::{HeaderMap, Request};
use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use proptest::collection::vec;
use sluice_net::deadline::Deadline;
use sluice_net::stream::{self, Reader, Writer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::exchange::{Coding, Exchange, any_length, exchange, short};
use super::origin::{Script, serve};
use super::*;

/// A memory stream in the form that the client's crate needs.
struct Pipe {
    reader: Reader,
    writer: Writer,
    deadline: Deadline,
}

impl Pipe {
    fn new(end: End) -> Self {
        let (reader, writer) = stream::halves(Stream::Memory(end));
        Self { reader, writer, deadline: Deadline::new(BOUND) }
    }
}

impl AsyncRead for Pipe {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let reader = &mut self.get_mut().reader;
        if reader.data().is_empty() && ready!(reader.poll_fill(cx, 4096))? == 0 {
            return Poll::Ready(Ok(()));
        }
        let count = reader.data().len().min(buf.remaining());
        buf.put_slice(&reader.data()[..count]);
        reader.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Self { writer, deadline, .. } = self.get_mut();
        ready!(writer.poll_settle(cx, deadline))?;
        writer.submit(buf.to_vec(), 0);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { writer, deadline, .. } = self.get_mut();
        writer.poll_settle(cx, deadline)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        self.writer.stream().shutdown_write();
        Poll::Ready(Ok(()))
    }
}

/// Runs the exchanges concurrently; the client's windows start at `window` bytes.
async fn play(route: &str, exchanges: Vec<Exchange>, behaviours: (Behaviour, Behaviour), window: u32) {
    let (behaviour, upstream) = behaviours;
    let exchanges: Rc<Vec<Exchange>> = Rc::new(exchanges);
    let script = Script::new(&exchanges);
    let shared = Rc::clone(&script);
    let (network, origins) = network(upstream, move |number, end| {
        serve(Rc::clone(&shared), end, upstream.seed ^ number as u64, [None, None])
    });
    let proxy = Proxy::with_route(route, ("http2: prior_knowledge, ", ""), network);
    let pipe = Pipe::new(proxy.connect(behaviour));
    let (sender, connection) = Builder::new().initial_window_size(window).handshake(pipe).await.unwrap();
    let connection = spawn_local(connection);
    let asking: Vec<_> = (0..exchanges.len())
        .map(|tag| spawn_local(ask(sender.clone(), Rc::clone(&exchanges), tag)))
        .collect();
    drop(sender);
    for asked in asking {
        asked.await.unwrap();
    }
    let _ = connection.await.unwrap();
    proxy.finish().await;
    ended(&origins).await;
    let seen = script.seen.take();
    assert_eq!(seen.len(), exchanges.len(), "requests that origins received");
    for seen in seen {
        let exchange = &exchanges[seen.tag];
        let asked = exchange.asked(seen.tag);
        if exchange.answer.early.is_some() {
            assert!(asked.starts_with(&seen.body));
            continue;
        }
        assert!(seen.whole && seen.body == asked, "request {} did not arrive as it was sent", seen.tag);
        let trailers = exchange.body.as_ref().map_or_else(Vec::new, |body| body.trailers(seen.tag));
        let trailers: Vec<String> = trailers.iter().map(|line| lower(line)).collect();
        assert_eq!(seen.trailers, trailers);
    }
}

/// A field line with its name in lower case, as in HTTP/2.
fn lower(line: &str) -> String {
    let (name, value) = line.split_once(':').unwrap();
    format!("{}:{value}", name.to_ascii_lowercase())
}

async fn ask(sender: SendRequest<Bytes>, exchanges: Rc<Vec<Exchange>>, tag: usize) {
    let exchange = &exchanges[tag];
    let mut request = Request::builder().method(exchange.method).uri(format!("http://a/{tag}"));
    request = request.header("x-tag", tag);
    if exchange.expects {
        request = request.header("expect", "100-continue");
    }
    if let Some(body) = &exchange.body
        && matches!(body.coding, Coding::Length)
    {
        request = request.header("content-length", body.length);
    }
    let mut sender = sender.ready().await.unwrap();
    let ends = exchange.body.is_none();
    let (response, stream) = sender.send_request(request.body(()).unwrap(), ends).unwrap();
    let answered = Cell::new(false);
    let receiving = async {
        receive(response, exchange, tag).await;
        answered.set(true);
    };
    if ends {
        return receiving.await;
    }
    let sending = async {
        // A peer that has its response does not want the rest of the request, and says so without an error.
        if let Err(reason) = send(stream, exchange, tag).await {
            assert!(exchange.answer.early.is_some() && reason == Reason::NO_ERROR, "{reason} {exchange:?}");
        }
    };
    tokio::join!(receiving, sending);
}

async fn send(mut stream: SendStream<Bytes>, exchange: &Exchange, tag: usize) -> Result<(), Reason> {
    let body = exchange.asked(tag);
    let mut rest = &body[..];
    let lost = |error: h2::Error| error.reason().unwrap_or(Reason::NO_ERROR);
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let room = match poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(room) => room.map_err(lost)?,
            None => return Err(poll_fn(|cx| stream.poll_reset(cx)).await.map_err(lost)?),
        };
        let (now, later) = rest.split_at(room.min(rest.len()));
        stream.send_data(Bytes::copy_from_slice(now), false).map_err(|_| Reason::NO_ERROR)?;
        rest = later;
    }
    let trailers = exchange.body.as_ref().map_or_else(Vec::new, |body| body.trailers(tag));
    let mut fields = HeaderMap::new();
    for line in &trailers {
        let (name, value) = line.split_once(": ").unwrap();
        fields.append(::http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    let sent = match trailers.is_empty() {
        true => stream.send_data(Bytes::new(), true),
        false => stream.send_trailers(fields),
    };
    sent.map_err(|_| Reason::NO_ERROR)
}

async fn receive(mut response: ResponseFuture, exchange: &Exchange, tag: usize) {
    let mut interim = Vec::new();
    while let Some(head) = poll_fn(|cx| response.poll_informational(cx)).await {
        interim.push(head.unwrap().status().as_u16());
    }
    interim.retain(|status| *status != 100);
    assert_eq!(interim, exchange.answer.interim);
    let response = response.await.unwrap();
    assert_eq!(response.status().as_u16(), exchange.answer.status, "{exchange:?}");
    assert_eq!(response.headers()["x-tag"], tag.to_string());
    let mut stream = response.into_body();
    let body = read(&mut stream).await;
    let wanted = exchange.answered(tag);
    assert!(body == wanted, "{} bytes instead of {}", body.len(), wanted.len());
    let trailers = stream.trailers().await.unwrap().unwrap_or_default();
    let trailers: Vec<String> =
        trailers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    let wanted = if exchange.is_bodiless() { Vec::new() } else { exchange.answer.message.trailers(!tag) };
    assert_eq!(trailers, wanted.iter().map(|line| lower(line)).collect::<Vec<_>>());
}

async fn read(stream: &mut RecvStream) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data.unwrap();
        stream.flow_control().release_capacity(data.len()).unwrap();
        body.extend_from_slice(&data);
    }
    body
}

/// Removes what HTTP/2 cannot express.
fn exchanges(length: BoxedStrategy<usize>, most: usize) -> impl Strategy<Value = Vec<Exchange>> {
    let one = exchange(length).prop_map(|exchange| {
        let expects = exchange.expects && exchange.body.is_some();
        Exchange { old: false, closes: false, expects, ..exchange }
    });
    vec(one, 1..most)
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn short_concurrent_exchanges_are_complete(
        exchanges in exchanges(short(), 10),
        behaviours in (rough(), rough()),
        window in 1u32..2000,
    ) {
        run(play("", exchanges, behaviours, window));
    }

    #[test]
    fn concurrent_exchanges_of_any_length_are_complete(
        exchanges in exchanges(any_length(), 8),
        behaviours in (usual(), usual()),
        window in 1000u32..200_000,
    ) {
        run(play("", exchanges, behaviours, window));
    }

    #[test]
    fn concurrent_buffered_bodies_are_complete(
        mut exchanges in exchanges(any_length(), 5),
        behaviours in (usual(), usual()),
        memory in super::exchange::memory(),
        window in 1000u32..200_000,
    ) {
        exchanges.iter_mut().for_each(|exchange| exchange.held = (true, true));
        run(play(&holding(memory), exchanges, behaviours, window));
    }
}

/// The memory of a stream in addition to its messages.
#[test]
fn a_stream_needs_little_memory() {
    fn of<C, F: Future>(_: impl FnOnce(C) -> F) -> usize {
        size_of::<F>()
    }
    fn within<'a, F: Future>(_: impl FnOnce(&'a mut Connection) -> F) -> usize {
        size_of::<F>()
    }
    let serve_stream = |connection: Box<Connection>| connection.serve_stream(Ok(()));
    let idle = size_of::<Connection>() + of(Connection::serve_requests).max(of(serve_stream));
    let asking = within(Connection::exchange);
    println!("{idle} bytes, and {asking} during a request");
    assert!(idle < 2048 && asking < 8192, "{idle} bytes, and {asking} during a request");
}
