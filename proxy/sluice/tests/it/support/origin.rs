//! Scripted origins, which record their requests.

use std::net::{SocketAddr, TcpListener};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use socket2::{Domain, Socket, Type};

use super::{Message, Wire, poll};

#[derive(Default)]
struct Seen {
    connections: usize,
    requests: Vec<Message>,
}

/// A server on its own threads, one per connection. They end with the test process at the latest.
pub(crate) struct Origin {
    /// Its address in a configuration.
    pub(crate) endpoint: String,
    seen: Arc<Mutex<Seen>>,
}

/// One connection at an origin.
pub(crate) struct Peer {
    wire: Wire,
    /// The number of this connection at the origin, from 0.
    pub(crate) index: usize,
    seen: Arc<Mutex<Seen>>,
}

impl Origin {
    /// Passes each connection to `play`, which closes it by returning.
    pub(crate) fn playing(play: impl Fn(Peer) + Send + Sync + 'static) -> Self {
        Self::playing_at(TcpListener::bind("127.0.0.1:0").unwrap(), play)
    }

    fn playing_at(listener: TcpListener, play: impl Fn(Peer) + Send + Sync + 'static) -> Self {
        let endpoint = listener.local_addr().unwrap().to_string();
        Self::accept(endpoint, play, move || listener.accept().map(|(stream, _)| stream.into()))
    }

    /// The same over TLS. A connection whose handshake fails is counted, but not passed to `play`.
    pub(crate) fn playing_tls(config: ServerConfig, play: impl Fn(Peer) + Send + Sync + 'static) -> Self {
        let config = Arc::new(config);
        Self::playing(move |Peer { wire, index, seen }| {
            if let Some(wire) = wire.accept_tls(&config) {
                play(Peer { wire, index, seen });
            }
        })
    }

    /// The same on a unix socket.
    pub(crate) fn playing_unix(path: &Path, play: impl Fn(Peer) + Send + Sync + 'static) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let endpoint = format!("unix:{}", path.display());
        Self::accept(endpoint, play, move || listener.accept().map(|(stream, _)| stream.into()))
    }

    fn accept(
        endpoint: String,
        play: impl Fn(Peer) + Send + Sync + 'static,
        accept: impl Fn() -> std::io::Result<Wire> + Send + 'static,
    ) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let (play, shared) = (Arc::new(play), Arc::clone(&seen));
        std::thread::spawn(move || {
            while let Ok(wire) = accept() {
                let index = {
                    let mut seen = shared.lock().unwrap();
                    seen.connections += 1;
                    seen.connections - 1
                };
                let peer = Peer { wire, index, seen: Arc::clone(&shared) };
                let play = Arc::clone(&play);
                std::thread::spawn(move || play(peer));
            }
        });
        Self { endpoint, seen }
    }

    /// Responds to every request with the result of `answer`, until the connection ends.
    pub(crate) fn answering(answer: impl Fn(&Message) -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self::listening(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    /// The same on a listening socket.
    pub(crate) fn listening(
        listener: TcpListener,
        answer: impl Fn(&Message) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self::playing_at(listener, move |mut peer| {
            while let Some(request) = peer.next() {
                if peer.try_send(answer(&request)).is_err() {
                    return;
                }
            }
        })
    }

    /// The same over TLS.
    pub(crate) fn answering_tls(
        config: ServerConfig,
        answer: impl Fn(&Message) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        Self::playing_tls(config, move |mut peer| {
            while let Some(request) = peer.next() {
                if peer.try_send(answer(&request)).is_err() {
                    return;
                }
            }
        })
    }

    /// Responds to every request with 200 and `body`.
    pub(crate) fn saying(body: &'static str) -> Self {
        Self::answering(move |_| ok(body))
    }

    /// Responds to every request with the received body, in the same framing.
    pub(crate) fn echoing() -> Self {
        Self::answering(|request| {
            let mut answer = match request.get("transfer-encoding") {
                Some(_) => {
                    format!(
                        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n",
                        request.body.len()
                    )
                }
                None => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len()),
            }
            .into_bytes();
            answer.extend_from_slice(&request.body);
            if request.get("transfer-encoding").is_some() {
                answer.extend_from_slice(b"\r\n0\r\n\r\n");
            }
            answer
        })
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.seen.lock().unwrap().connections
    }

    /// Requests received completely so far.
    pub(crate) fn requests(&self) -> Vec<Message> {
        self.seen.lock().unwrap().requests.clone()
    }

    /// The last completely received request.
    pub(crate) fn last(&self) -> Message {
        poll("a request at the origin", || self.seen.lock().unwrap().requests.last().cloned())
    }
}

impl Peer {
    /// The next request, recorded; `None` when the proxy has closed.
    pub(crate) fn next(&mut self) -> Option<Message> {
        let request = self.wire.try_request().ok()?;
        self.seen.lock().unwrap().requests.push(request.clone());
        Some(request)
    }

    /// Its connection only.
    pub(crate) fn into_wire(self) -> Wire {
        self.wire
    }

    /// Resets the connection.
    pub(crate) fn reset(self) {
        self.wire.reset();
    }
}

impl Deref for Peer {
    type Target = Wire;

    fn deref(&self) -> &Wire {
        &self.wire
    }
}

impl DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Wire {
        &mut self.wire
    }
}

/// A 200 with this body.
pub(crate) fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// An address that refuses connections: bound, so that no other process gets it, but not listening.
pub(crate) struct Dead(Socket);

impl Dead {
    pub(crate) fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        Self(socket)
    }

    pub(crate) fn endpoint(&self) -> String {
        self.0.local_addr().unwrap().as_socket().unwrap().to_string()
    }

    /// Accepts connections from now on.
    pub(crate) fn listen(&self) -> TcpListener {
        self.0.listen(1024).unwrap();
        self.0.try_clone().unwrap().into()
    }
}
