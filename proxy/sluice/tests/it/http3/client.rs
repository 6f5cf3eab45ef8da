//! A correct HTTP/3 client.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::{Buf, Bytes};
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use http::{HeaderMap, Request, request};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint};

use super::Site;
use crate::support::{Answer, PATIENCE};

pub(super) type Sender = SendRequest<OpenStreams, Bytes>;
pub(super) type Stream = h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

impl Site {
    /// Runs `play` with a runtime, for a bounded time.
    pub(super) fn run<T>(&self, play: impl AsyncFnOnce() -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(PATIENCE, play()).await.expect("timed out") })
    }

    /// Connects, drives the connection, and runs `play`.
    pub(super) fn talk<T>(&self, play: impl AsyncFnOnce(Sender) -> T) -> T {
        self.talk_through(self.proxy.address_of("main"), play)
    }

    /// The same by another address, from which datagrams are relayed.
    pub(super) fn talk_through<T>(&self, address: SocketAddr, play: impl AsyncFnOnce(Sender) -> T) -> T {
        self.run(async || {
            let (_endpoint, connection) = self.connect_to(address).await;
            let connection = h3_quinn::Connection::new(connection);
            let (mut driver, sender) = h3::client::new(connection).await.unwrap();
            tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
            play(sender).await
        })
    }

    /// A QUIC connection.
    pub(super) async fn connect(&self) -> (Endpoint, Connection) {
        self.connect_to(self.proxy.address_of("main")).await
    }

    async fn connect_to(&self, address: SocketAddr) -> (Endpoint, Connection) {
        let endpoint = Endpoint::client(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let connecting = endpoint.connect_with(self.client(), address, "a.test").unwrap();
        (endpoint.clone(), connecting.await.unwrap())
    }

    /// What a client needs to know.
    pub(super) fn client(&self) -> ClientConfig {
        let mut tls = self.authority.client();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
    }
}

/// A request to this path.
pub(super) fn to(path: &str) -> request::Builder {
    Request::builder().uri(format!("https://a.test{path}"))
}

/// Sends a request without a body.
pub(super) async fn get(sender: &Sender, path: &str) -> Answer {
    ask(sender, to(path).body(()).unwrap()).await
}

/// The same for any head.
pub(super) async fn ask(sender: &Sender, request: Request<()>) -> Answer {
    let mut stream = sender.clone().send_request(request).await.unwrap();
    stream.finish().await.unwrap();
    answer(stream).await
}

/// Sends a request with a body, and trailers if there are some, while its answer comes.
pub(super) async fn post(
    sender: &Sender,
    request: Request<()>,
    body: &[u8],
    trailers: Option<HeaderMap>,
) -> Answer {
    let stream = sender.clone().send_request(request).await.unwrap();
    let (mut sending, mut receiving) = stream.split();
    let send = async {
        for piece in body.chunks(10_000) {
            sending.send_data(Bytes::copy_from_slice(piece)).await.unwrap();
        }
        if let Some(trailers) = trailers {
            sending.send_trailers(trailers).await.unwrap();
        }
        sending.finish().await.unwrap();
    };
    let receive = async {
        let head = receiving.recv_response().await.unwrap();
        let mut body = Vec::new();
        while let Some(mut data) = receiving.recv_data().await.unwrap() {
            body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        Answer { head, body, trailers: receiving.recv_trailers().await.unwrap() }
    };
    tokio::join!(send, receive).1
}

/// Receives a response to its end.
pub(super) async fn answer(mut stream: Stream) -> Answer {
    let head = stream.recv_response().await.unwrap();
    let mut body = Vec::new();
    while let Some(mut data) = stream.recv_data().await.unwrap() {
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    Answer { head, body, trailers: stream.recv_trailers().await.unwrap() }
}
