//! Asks a running sluice through its admin listener whether it serves. Blocking: for a separate process, such as a
//! container's health check.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use sluice_config::Address;
use sluice_control::admin::Token;

use crate::cli::AdminAddress;

/// Why sluice does not serve, as far as known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub(crate) struct Unhealthy(String);

/// Time limit for connecting, and for each read and write. The control thread responds within a millisecond; container
/// runtimes allow a check 30 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum bytes of a response that are read.
const ANSWER_BYTES_MAX: u64 = 4 << 10;

/// Requests `/healthz` at `admin`.
///
/// # Errors
/// Anything but status 200: no listener, no response in time, draining, or a token file that cannot be read.
pub(crate) fn ask(admin: &AdminAddress) -> Result<(), Unhealthy> {
    let token = admin.token_file.as_deref().map(Token::read).transpose();
    let token = token.map_err(|error| Unhealthy(format!("token file: {error}")))?;
    let request = Request { token };
    let answer = match &admin.address {
        Address::Ip(address) => tcp(*address, &request),
        Address::Name(host, port) => tcp((host.as_str(), *port), &request),
        Address::Unix(path) => UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            // A unix socket has no name for a Host field.
            request.exchange(stream, "localhost")
        }),
    };
    judge(&answer.map_err(|error| format!("the admin listener cannot be reached: {error}"))?)
}

/// Tries each address of a name, because the listener may be bound to only one of them.
fn tcp(at: impl ToSocketAddrs, request: &Request) -> io::Result<String> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in at.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return request.exchange(stream, &address.to_string());
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// What is asked for.
struct Request {
    /// The token of the admin listener, if it requires one.
    token: Option<Token>,
}

impl Request {
    fn exchange(&self, mut stream: impl Read + Write, host: &str) -> io::Result<String> {
        let token = self.token.as_ref().map(|token| String::from_utf8_lossy(token.bytes()).into_owned());
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        // In one write; `write!` would use several.
        let request = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\n{token}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

fn judge(answer: &str) -> Result<(), Unhealthy> {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let status = head.lines().next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
    match status {
        Some(status) if status.starts_with("200 ") => Ok(()),
        Some(status) => Err(format!("{status}: {}", body.trim()).into()),
        None => Err("the response is not HTTP".into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    use std::net::{SocketAddr, TcpListener};
    use std::thread;

    use socket2::{Domain, Socket, Type};

    /// Serves `answer` to one request; returns the result of asking.
    fn told(answer: &'static str) -> Result<(), Unhealthy> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Ip(listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(head).unwrap()
        });
        let verdict = ask(&AdminAddress { address, token_file: None });
        let asked = server.join().unwrap();
        assert!(asked.starts_with("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:"), "{asked}");
        verdict
    }

    #[test]
    fn only_200_is_healthy() {
        assert_eq!(told("HTTP/1.1 200 OK\r\n\r\nok\n"), Ok(()));
        let draining = told("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\ndraining\n");
        assert_eq!(draining, Err("503 Service Unavailable: draining".into()));
        assert_eq!(told("220 mail\r\n"), Err("the response is not HTTP".into()));
        assert_eq!(told(""), Err("the response is not HTTP".into()));
    }

    #[test]
    fn a_missing_listener_is_unhealthy() {
        // Bound, so that no other process gets the port, but not listening.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let gone = socket.local_addr().unwrap().as_socket().unwrap();
        let at = |address| AdminAddress { address, token_file: None };
        let error = ask(&at(Address::Ip(gone))).unwrap_err();
        assert!(error.0.starts_with("the admin listener cannot be reached: "), "{error}");
        assert!(ask(&at(Address::Unix("/nonexistent/admin.sock".into()))).is_err());
    }
}
