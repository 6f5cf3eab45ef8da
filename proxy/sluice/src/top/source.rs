//! Requests the document from the admin listener. Blocking, with time limits.

use crate::top::TopError;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use sluice_config::Address;
use sluice_control::admin::Token;
use sluice_control::status::Document;

/// Reached only if sluice hangs: a document is created within milliseconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// A document with a thousand endpoints takes 5 MB.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The source of documents.
pub(crate) struct Source {
    address: Address,
    token: Option<Token>,
}

impl Source {
    /// The admin listener at `address`, and the file with its token.
    ///
    /// # Errors
    /// A sentence about what is wrong with the file.
    pub(crate) fn new(address: Address, token_file: Option<&Path>) -> Result<Self, TopError> {
        let token =
            token_file.map(Token::read).transpose().map_err(|error| format!("token file: {error}"))?;
        Ok(Self { address, token })
    }

    /// Requests the current document.
    ///
    /// # Errors
    /// A sentence about the failure.
    pub(crate) fn fetch(&self) -> Result<Document, TopError> {
        self.fetch_as()
    }

    /// The same as another type.
    pub(super) fn fetch_as<T: DeserializeOwned>(&self) -> Result<T, TopError> {
        let at = &self.address;
        let answer = self.ask().map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused | ErrorKind::NotFound => format!(
                "no process is listening at {at} ({error}); is sluice running there, with `admin: {at}` in \
                 its configuration?"
            ),
            _ => format!("the admin listener at {at} cannot be reached: {error}"),
        })?;
        let mut fields = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut fields);
        let read = head.parse(&answer);
        let (Ok(httparse::Status::Complete(length)), Some(status)) = (read, head.code) else {
            return Err(format!("the process at {at} is not an admin listener").into());
        };
        let body = &answer[length..];
        match status {
            200 => serde_json::from_slice(body).map_err(|error| {
                format!("the response of {at} is not a status document of this version of sluice ({error})")
                    .into()
            }),
            401 => Err(format!("{at} requires a token: --token-file FILE").into()),
            404 => {
                Err(format!("the process at {at} has no /status.json; it is an older sluice, or not sluice")
                    .into())
            }
            _ => {
                let said = String::from_utf8_lossy(body);
                Err(format!("{at} returned {status}: {}", said.lines().next().unwrap_or_default()).into())
            }
        }
    }

    fn ask(&self) -> std::io::Result<Vec<u8>> {
        match &self.address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(DEADLINE))?;
                stream.set_write_timeout(Some(DEADLINE))?;
                self.exchange(stream, "localhost")
            }
            Address::Ip(address) => self.ask_tcp(&[*address]),
            Address::Name(name, port) => {
                let addresses: Vec<_> = (name.as_str(), *port).to_socket_addrs()?.collect();
                self.ask_tcp(&addresses)
            }
        }
    }

    fn ask_tcp(&self, addresses: &[std::net::SocketAddr]) -> std::io::Result<Vec<u8>> {
        let mut failed = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match TcpStream::connect_timeout(address, DEADLINE) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(DEADLINE))?;
                    stream.set_write_timeout(Some(DEADLINE))?;
                    return self.exchange(stream, &self.address.to_string());
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn exchange(&self, mut stream: impl Read + Write, host: &str) -> std::io::Result<Vec<u8>> {
        // With HTTP/1.0 the body ends with the connection and is never chunked.
        let mut request = format!("GET /status.json HTTP/1.0\r\nHost: {host}\r\n").into_bytes();
        if let Some(token) = &self.token {
            request.extend_from_slice(b"Authorization: Bearer ");
            request.extend_from_slice(token.bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        stream.write_all(&request)?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        Ok(answer)
    }
}
