//! A correct HTTP/2 client.

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{RecvStream, SendStream};
use http::request;
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;

use crate::support::{Answer, PATIENCE, Proxy};

/// Connects, drives the connection, and runs `play`.
pub(super) fn talk<T>(proxy: &Proxy, play: impl AsyncFnOnce(SendRequest<Bytes>) -> T) -> T {
    talk_by(proxy, &Builder::new(), play)
}

/// The same with settings.
pub(super) fn talk_by<T>(
    proxy: &Proxy,
    builder: &Builder,
    play: impl AsyncFnOnce(SendRequest<Bytes>) -> T,
) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = proxy.address();
    runtime.block_on(async {
        let playing = async {
            let socket = TcpStream::connect(address).await.unwrap();
            let (sender, connection) = builder.handshake(socket).await.unwrap();
            tokio::spawn(connection);
            play(sender).await
        };
        tokio::time::timeout(PATIENCE, playing).await.expect("timed out")
    })
}

/// A request to this path.
pub(super) fn to(path: &str) -> request::Builder {
    Request::builder().uri(format!("http://a.test{path}"))
}

/// Sends a request without a body.
pub(super) async fn get(sender: &SendRequest<Bytes>, path: &str) -> Answer {
    ask(sender, to(path).body(()).unwrap()).await
}

/// The same for any head.
pub(super) async fn ask(sender: &SendRequest<Bytes>, request: Request<()>) -> Answer {
    let mut sender = sender.clone().ready().await.unwrap();
    let (response, _) = sender.send_request(request, true).unwrap();
    answer(response.await.unwrap()).await.unwrap()
}

/// Sends a request with a body, and trailers if there are some, while its answer comes.
pub(super) async fn post(
    sender: &SendRequest<Bytes>,
    request: Request<()>,
    body: &[u8],
    trailers: Option<HeaderMap>,
) -> Answer {
    let mut sender = sender.clone().ready().await.unwrap();
    let (response, mut stream) = sender.send_request(request, false).unwrap();
    let sending = async {
        send(&mut stream, body).await;
        match trailers {
            Some(trailers) => stream.send_trailers(trailers).unwrap(),
            None => stream.send_data(Bytes::new(), true).unwrap(),
        }
    };
    let receiving = async { answer(response.await.unwrap()).await.unwrap() };
    tokio::join!(sending, receiving).1
}

/// Sends as far as the windows allow.
pub(super) async fn send(stream: &mut SendStream<Bytes>, mut body: &[u8]) {
    while !body.is_empty() {
        stream.reserve_capacity(body.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
        let (now, later) = body.split_at(room.min(body.len()));
        stream.send_data(Bytes::copy_from_slice(now), false).unwrap();
        body = later;
    }
}

/// The next piece of a body; its window is released.
pub(super) async fn piece(body: &mut RecvStream) -> Option<Result<Bytes, h2::Error>> {
    let data = body.data().await?;
    if let Ok(data) = &data {
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    Some(data)
}

/// Receives a response to its end.
pub(super) async fn answer(response: Response<RecvStream>) -> Result<Answer, h2::Error> {
    let (head, mut stream) = response.into_parts();
    let mut body = Vec::new();
    while let Some(data) = piece(&mut stream).await {
        body.extend_from_slice(&data?);
    }
    let trailers = stream.trailers().await?;
    Ok(Answer { head: Response::from_parts(head, ()), body, trailers })
}
