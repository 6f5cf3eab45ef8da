//! A correct HTTP/2 endpoint.

use std::future::Future;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

/// A request at the endpoint.
pub(super) struct Asked {
    pub(super) request: Request<RecvStream>,
    pub(super) respond: SendResponse<Bytes>,
    /// Its number among the server's requests, from 0.
    pub(super) number: usize,
}

type Serve = Arc<dyn Fn(Asked) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

#[derive(Default)]
struct Counts {
    connections: AtomicUsize,
    open: AtomicUsize,
    requests: AtomicUsize,
}

/// A server on its own thread, which ends with the test process at the latest.
pub(super) struct Server {
    /// Its address in a configuration.
    pub(super) endpoint: String,
    counts: Arc<Counts>,
}

impl Server {
    /// Passes each request to `serve`.
    pub(super) fn new<F>(serve: impl Fn(Asked) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::by(Builder::new(), usize::MAX, serve)
    }

    /// The same with settings; sends GOAWAY on each connection at its request with this number.
    pub(super) fn by<F>(
        builder: Builder,
        requests_max: usize,
        serve: impl Fn(Asked) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start(builder, requests_max, None, serve)
    }

    /// Over TLS.
    pub(super) fn secured<F>(tls: ServerConfig, serve: impl Fn(Asked) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::start(Builder::new(), usize::MAX, Some(TlsAcceptor::from(Arc::new(tls))), serve)
    }

    fn start<F>(
        builder: Builder,
        requests_max: usize,
        tls: Option<TlsAcceptor>,
        serve: impl Fn(Asked) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let counts = Arc::<Counts>::default();
        let shared = Arc::clone(&counts);
        let serve: Serve = Arc::new(move |asked| Box::pin(serve(asked)));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                listener.set_nonblocking(true).unwrap();
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                while let Ok((socket, _)) = listener.accept().await {
                    let (builder, serve, counts) = (builder.clone(), Arc::clone(&serve), Arc::clone(&shared));
                    let tls = tls.clone();
                    tokio::spawn(async move {
                        match tls {
                            None => connection(socket, builder, requests_max, serve, counts).await,
                            Some(tls) => {
                                let Ok(socket) = tls.accept(socket).await else { return };
                                connection(socket, builder, requests_max, serve, counts).await;
                            }
                        }
                    });
                }
            });
        });
        Self { endpoint, counts }
    }

    /// Connections accepted so far.
    pub(super) fn connections(&self) -> usize {
        self.counts.connections.load(SeqCst)
    }

    /// Connections that are still open.
    pub(super) fn open(&self) -> usize {
        self.counts.open.load(SeqCst)
    }

    /// Requests so far.
    pub(super) fn requests(&self) -> usize {
        self.counts.requests.load(SeqCst)
    }
}

async fn connection(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    builder: Builder,
    requests_max: usize,
    serve: Serve,
    counts: Arc<Counts>,
) {
    counts.connections.fetch_add(1, SeqCst);
    counts.open.fetch_add(1, SeqCst);
    if let Ok(mut connection) = builder.handshake(socket).await {
        let mut served = 0;
        while let Some(Ok((request, respond))) = connection.accept().await {
            served += 1;
            if served == requests_max {
                connection.graceful_shutdown();
            }
            let number = counts.requests.fetch_add(1, SeqCst);
            tokio::spawn(serve(Asked { request, respond, number }));
        }
    }
    counts.open.fetch_sub(1, SeqCst);
}

impl Asked {
    pub(super) fn path(&self) -> &str {
        self.request.uri().path()
    }

    /// The value of a field; empty without it.
    pub(super) fn field(&self, name: &str) -> String {
        let value = self.request.headers().get(name).map(|value| value.to_str().unwrap());
        value.unwrap_or_default().to_owned()
    }

    /// The complete body, and its trailers.
    pub(super) async fn body(&mut self) -> (Vec<u8>, Option<HeaderMap>) {
        let body = self.request.body_mut();
        let mut whole = Vec::new();
        while let Some(Ok(data)) = body.data().await {
            body.flow_control().release_capacity(data.len()).unwrap();
            whole.extend_from_slice(&data);
        }
        (whole, body.trailers().await.ok().flatten())
    }

    /// Responds with a head; a body follows.
    pub(super) fn begin(&mut self, status: u16, fields: &[(&str, &str)]) -> SendStream<Bytes> {
        self.respond.send_response(head(status, fields), false).unwrap()
    }

    /// Responds with a head only.
    pub(super) fn bare(&mut self, status: u16, fields: &[(&str, &str)]) {
        self.respond.send_response(head(status, fields), true).unwrap();
    }

    /// Sends a complete response.
    pub(super) fn answer(&mut self, body: &[u8]) {
        self.begin(200, &[]).send_data(Bytes::copy_from_slice(body), true).unwrap();
    }
}

/// A head.
pub(super) fn head(status: u16, fields: &[(&str, &str)]) -> Response<()> {
    let builder = Response::builder().status(status);
    fields.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value)).body(()).unwrap()
}
