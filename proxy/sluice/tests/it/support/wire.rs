//! One end of a connection in raw bytes, used by clients and origins of the tests.
//!
//! Reading is deliberately lenient: a test checks what was received, not the result of a strict parser.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, ServerConfig};
use socket2::SockRef;

use super::{PATIENCE, Secure};

/// A received message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    /// The request or status line.
    pub(crate) line: String,
    /// The head's fields in order, with names as received.
    pub(crate) fields: Vec<(String, String)>,
    /// The content, with chunks joined.
    pub(crate) body: Vec<u8>,
    /// Trailer fields.
    pub(crate) trailers: Vec<(String, String)>,
    /// Whether any chunk line had an extension.
    pub(crate) extended: bool,
}

impl Message {
    fn parse(head: &str) -> Self {
        let mut lines = head.split("\r\n");
        let line = lines.next().unwrap_or_default().to_owned();
        Self { line, fields: fields(lines), ..Self::default() }
    }

    /// The values of all fields of this name, in any case.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let same = self.fields.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        same.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of the only field of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        match self.all(name)[..] {
            [] => None,
            [value] => Some(value),
            _ => panic!("more than one {name}: {self:?}"),
        }
    }

    /// The status of a response.
    pub(crate) fn status(&self) -> u16 {
        let status = self.line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        status.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no status line: {self:?}"))
    }

    /// The target of a request.
    pub(crate) fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    /// The body as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    fn is_chunked(&self) -> bool {
        self.get("transfer-encoding").is_some_and(|coding| coding == "chunked")
    }

    fn is_bodiless(&self) -> bool {
        matches!(self.line.split(' ').nth(1), Some(status) if status.starts_with('1') || status == "204" || status == "304")
    }
}

fn fields<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let pairs = lines.filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Secure>),
}

/// A connection, and bytes that were received but not processed.
pub(crate) struct Wire {
    socket: Socket,
    received: Vec<u8>,
}

impl From<TcpStream> for Wire {
    fn from(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { socket: Socket::Tcp(stream), received: Vec::new() }
    }
}

impl From<UnixStream> for Wire {
    fn from(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { socket: Socket::Unix(stream), received: Vec::new() }
    }
}

impl From<Secure> for Wire {
    fn from(stream: Secure) -> Self {
        Self { socket: Socket::Tls(Box::new(stream)), received: Vec::new() }
    }
}

impl Wire {
    /// Connects to `name` over TLS; an error is a failed handshake.
    pub(crate) fn connect_tls(
        address: SocketAddr,
        name: &str,
        config: &Arc<ClientConfig>,
    ) -> io::Result<Self> {
        Self::connect(address).secured(name, config)
    }

    /// Continues over TLS, as a client.
    pub(crate) fn secured(self, name: &str, config: &Arc<ClientConfig>) -> io::Result<Self> {
        let Socket::Tcp(socket) = self.socket else { panic!("TLS requires TCP here") };
        Ok(Secure::connect(config, name, socket)?.into())
    }

    /// The same as a server; `None` if the handshake fails.
    pub(crate) fn accept_tls(self, config: &Arc<ServerConfig>) -> Option<Self> {
        let Socket::Tcp(socket) = self.socket else { panic!("TLS requires TCP here") };
        Secure::accept(config, socket).ok().map(Self::from)
    }

    /// The TLS session, if this is one.
    pub(crate) fn secure(&self) -> Option<&Secure> {
        match &self.socket {
            Socket::Tls(stream) => Some(stream),
            Socket::Tcp(_) | Socket::Unix(_) => None,
        }
    }

    /// The negotiated session, as a client.
    pub(crate) fn session(&self) -> &ClientConnection {
        match self.secure() {
            Some(Secure::Client(stream)) => &stream.conn,
            _ => panic!("no TLS session"),
        }
    }

    pub(crate) fn connect(address: SocketAddr) -> Self {
        TcpStream::connect(address).unwrap().into()
    }

    pub(crate) fn connect_unix(path: &Path) -> Self {
        UnixStream::connect(path).unwrap().into()
    }

    /// A second handle, to send from another thread.
    pub(crate) fn twin(&self) -> Self {
        match &self.socket {
            Socket::Tcp(stream) => stream.try_clone().unwrap().into(),
            Socket::Unix(stream) => stream.try_clone().unwrap().into(),
            Socket::Tls(_) => panic!("a TLS session has only one end here"),
        }
    }

    fn sockref(&self) -> SockRef<'_> {
        match &self.socket {
            Socket::Tcp(stream) => SockRef::from(stream),
            Socket::Unix(stream) => SockRef::from(stream),
            Socket::Tls(stream) => SockRef::from(stream.tcp()),
        }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).unwrap();
    }

    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        match &mut self.socket {
            Socket::Tcp(stream) => stream.write_all(bytes.as_ref()),
            Socket::Unix(stream) => stream.write_all(bytes.as_ref()),
            Socket::Tls(stream) => stream.write_all(bytes.as_ref()).and_then(|()| stream.flush()),
        }
    }

    /// Shuts down this side; the other may continue.
    pub(crate) fn finish(&mut self) {
        if let Socket::Tls(stream) = &mut self.socket {
            stream.notify().unwrap();
        }
        self.sockref().shutdown(Shutdown::Write).unwrap();
    }

    /// Resets the connection.
    pub(crate) fn reset(self) {
        self.sockref().set_linger(Some(Duration::ZERO)).unwrap();
    }

    /// Receives more; `Ok(0)` is the end.
    fn fill(&mut self) -> io::Result<usize> {
        let mut room = [0; 16 * 1024];
        let count = match &mut self.socket {
            Socket::Tcp(stream) => stream.read(&mut room)?,
            Socket::Unix(stream) => stream.read(&mut room)?,
            Socket::Tls(stream) => stream.read(&mut room)?,
        };
        self.received.extend_from_slice(&room[..count]);
        Ok(count)
    }

    /// Exactly `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        while self.received.len() < count {
            let more = self.fill().unwrap();
            assert!(more > 0, "ended after {:?}", String::from_utf8_lossy(&self.received));
        }
        self.received.drain(..count).collect()
    }

    /// Bytes up to `end`, which is consumed but not returned.
    fn until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        let mut from = 0;
        loop {
            let found = self.received[from..].windows(end.len()).position(|window| window == end);
            if let Some(at) = found {
                let taken = self.received.drain(..from + at).collect();
                self.received.drain(..end.len());
                return Ok(taken);
            }
            from = self.received.len().saturating_sub(end.len() - 1);
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The next head; an error is the connection's end or reset.
    pub(crate) fn try_head(&mut self) -> io::Result<Message> {
        let head = self.until(b"\r\n\r\n")?;
        Ok(Message::parse(&String::from_utf8_lossy(&head)))
    }

    /// The next head.
    pub(crate) fn head(&mut self) -> Message {
        self.try_head().unwrap_or_else(|error| {
            panic!("{:?} instead of a head: {error}", String::from_utf8_lossy(&self.received))
        })
    }

    /// The next request with its body.
    pub(crate) fn try_request(&mut self) -> io::Result<Message> {
        let mut message = self.try_head()?;
        self.body(&mut message, true);
        Ok(message)
    }

    /// The next response, interim or final, with its body if it has one.
    pub(crate) fn response(&mut self) -> Message {
        let mut message = self.head();
        if !message.is_bodiless() {
            self.body(&mut message, false);
        }
        message
    }

    /// One exchange.
    pub(crate) fn ask(&mut self, request: impl AsRef<[u8]>) -> Message {
        self.send(request);
        self.response()
    }

    /// Receives the body that `message` declares; without a declaration it ends with the connection.
    pub(crate) fn body(&mut self, message: &mut Message, is_request: bool) {
        if message.is_chunked() {
            while let Some(chunk) = self.chunk(message) {
                message.body.extend_from_slice(&chunk);
            }
        } else if let Some(length) = message.get("content-length") {
            message.body = self.take(length.parse().unwrap());
        } else if !is_request {
            let (body, clean) = self.rest();
            assert!(clean, "reset within a body that ends with the connection");
            message.body = body;
        }
    }

    /// One chunk; after the last one, the trailers go into `message`.
    pub(crate) fn chunk(&mut self, message: &mut Message) -> Option<Vec<u8>> {
        let line = String::from_utf8(self.until(b"\r\n").unwrap()).unwrap();
        let (size, extension) = line.split_once(';').unwrap_or((&line, ""));
        message.extended |= !extension.is_empty();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size > 0 {
            let chunk = self.take(size);
            assert_eq!(self.take(2), b"\r\n");
            return Some(chunk);
        }
        loop {
            let line = String::from_utf8(self.until(b"\r\n").unwrap()).unwrap();
            if line.is_empty() {
                return None;
            }
            message.trailers.extend(fields([line.as_str()].into_iter()));
        }
    }

    /// All further bytes, and whether the connection then ended properly rather than by a reset.
    pub(crate) fn rest(&mut self) -> (Vec<u8>, bool) {
        let clean = loop {
            match self.fill() {
                Ok(0) => break true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break false,
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&self.received)),
            }
        };
        (std::mem::take(&mut self.received), clean)
    }

    /// No more bytes: the other side has closed or reset the connection.
    pub(crate) fn expect_end(&mut self) {
        let (bytes, _) = self.rest();
        assert_eq!(String::from_utf8_lossy(&bytes), "", "bytes after the end");
    }
}
