//! One health check: a connection, a call, or a small GET of whose response only the head is read, or as much of the
//! body as is needed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use sluice_config::{CheckProtocol, HealthCheck};
use sluice_core::cluster::{Endpoint, EndpointAddress};
use sluice_core::tls::upstream::{Purpose, UpstreamSessions};
use sluice_core::tls::verify;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::grpc;
use crate::outbound::{Duplex, with_causes};

/// Maximum bytes of a response head, including interim responses (1xx).
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Maximum bytes of a body that are searched.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Maximum fields of a response head.
const FIELDS_MAX: usize = 100;

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    /// connecting failed
    #[error("connecting failed: {0}")]
    Connect(io::Error),
    /// the TLS handshake failed
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    /// the connection failed
    #[error("the connection failed: {0}")]
    Broken(io::Error),
    /// the connection closed before a complete response head
    #[error("the connection closed before a complete response head")]
    Closed,
    /// the response is not HTTP/1
    #[error("the response is not HTTP/1: {0}")]
    Malformed(httparse::Error),
    /// the head is too large
    #[error("the head is larger than {HEAD_BYTES_MAX} bytes")]
    TooLarge,
    /// no response in time
    #[error("no response within {0} ms")]
    Timeout(u64),
    /// an unexpected status
    #[error("status {0}")]
    Status(u16),
    /// the body lacks the expected text
    #[error("the first {BODY_BYTES_MAX} bytes of the body do not contain the expected text")]
    Body,
    /// the response of hyper's client cannot be used
    #[error("the response cannot be read: {0}")]
    Unreadable(String),
    /// the call of the health service failed
    #[error("{0}")]
    Grpc(String),
}

/// What an endpoint did well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
pub(crate) enum Success {
    /// It responded with an expected status.
    #[display("{_0}")]
    Status(u16),
    /// It accepted a connection.
    #[display("connected")]
    Connected,
    /// Its service serves.
    #[display("serving")]
    Serving,
}

/// Connects, asks and compares the response, all within `timeout_ms`.
pub(crate) async fn check(
    endpoint: &Endpoint,
    tls: Option<&UpstreamSessions>,
    config: &HealthCheck,
) -> Result<Success, CheckError> {
    let limit = Duration::from_millis(config.timeout_ms);
    let asked = timeout(limit, connect_and_ask(endpoint, tls, config)).await;
    asked.map_err(|_| CheckError::Timeout(config.timeout_ms))?
}

fn expected(status: u16, config: &HealthCheck) -> Result<Success, CheckError> {
    let mut ranges = config.expected_statuses.iter();
    match ranges.any(|&(first, last)| (first..=last).contains(&status)) {
        true => Ok(Success::Status(status)),
        false => Err(CheckError::Status(status)),
    }
}

/// The address of the check, with its own port if it has one.
fn asked_address(address: &EndpointAddress, port: Option<u16>) -> EndpointAddress {
    match (address, port) {
        (EndpointAddress::Ip(address), Some(port)) => {
            EndpointAddress::Ip(SocketAddr::new(address.ip(), port))
        }
        _ => address.clone(),
    }
}

fn request(path: &str, host: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sluice/{} health-check\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    )
    .into_bytes()
}

/// The start of a TLS connection to an endpoint.
struct Secured {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// The TLS settings of the cluster's requests.
fn secured(tls: &UpstreamSessions, endpoint: &Endpoint, purpose: Purpose) -> Result<Secured, CheckError> {
    let name = tls.server_name(&endpoint.host).map_err(|error| CheckError::Tls(error.to_string()))?;
    Ok(Secured { connector: TlsConnector::from(tls.client(purpose)), name })
}

async fn connect_and_ask(
    endpoint: &Endpoint,
    tls: Option<&UpstreamSessions>,
    config: &HealthCheck,
) -> Result<Success, CheckError> {
    let purpose = match config.protocol {
        CheckProtocol::Http => Purpose::Http1,
        CheckProtocol::Tcp => Purpose::Opaque,
        CheckProtocol::Grpc => Purpose::Http2,
    };
    let secured = tls.map(|tls| secured(tls, endpoint, purpose)).transpose()?;
    let stream = connect(&asked_address(&endpoint.address, config.port)).await?;
    let stream: Box<dyn Duplex> = match secured {
        Some(Secured { connector, name }) => {
            let stream = connector.connect(name, stream).await;
            Box::new(stream.map_err(|error| CheckError::Tls(verify::describe_io(&error)))?)
        }
        None => stream,
    };
    let host = config.host.as_deref().unwrap_or(&endpoint.host);
    match (config.protocol, &config.expected_body) {
        (CheckProtocol::Tcp, _) => Ok(Success::Connected),
        (CheckProtocol::Grpc, _) => {
            grpc::ask(stream, host, config.grpc_service.as_deref().unwrap_or_default(), tls.is_some()).await
        }
        (CheckProtocol::Http, None) => expected(ask(stream, &request(&config.path, host)).await?, config),
        (CheckProtocol::Http, Some(text)) => {
            let (status, body) = ask_for_body(stream, &config.path, host).await?;
            let passed = expected(status, config)?;
            match memchr::memmem::find(&body, text.as_bytes()) {
                Some(_) => Ok(passed),
                None => Err(CheckError::Body),
            }
        }
    }
}

async fn connect(address: &EndpointAddress) -> Result<Box<dyn Duplex>, CheckError> {
    Ok(match address {
        EndpointAddress::Ip(address) => {
            Box::new(TcpStream::connect(address).await.map_err(CheckError::Connect)?)
        }
        EndpointAddress::Unix(path) => {
            Box::new(UnixStream::connect(path).await.map_err(CheckError::Connect)?)
        }
    })
}

/// The status and the beginning of the body.
async fn ask_for_body(stream: Box<dyn Duplex>, path: &str, host: &str) -> Result<(u16, Vec<u8>), CheckError> {
    let unreadable = |error: hyper::Error| CheckError::Unreadable(with_causes(&error));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(unreadable)?;
    let request = Request::get(path)
        .header(header::HOST, host)
        .header(header::USER_AGENT, concat!("sluice/", env!("CARGO_PKG_VERSION"), " health-check"))
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| CheckError::Unreadable(error.to_string()))?;
    let answered = async move {
        let (head, mut body) = sender.send_request(request).await.map_err(unreadable)?.into_parts();
        let mut received = Vec::new();
        while received.len() < BODY_BYTES_MAX
            && let Some(frame) = body.frame().await
        {
            let data = frame.map_err(unreadable)?.into_data().unwrap_or_default();
            let room = BODY_BYTES_MAX - received.len();
            received.extend_from_slice(&data[..data.len().min(room)]);
        }
        Ok((head.status.as_u16(), received))
    };
    // The result of the connection adds nothing: the request reports every error that matters.
    let (answer, _) = tokio::join!(answered, connection);
    answer
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &[u8]) -> Result<u16, CheckError> {
    stream.write_all(request).await.map_err(CheckError::Broken)?;
    let mut received = Vec::with_capacity(1024);
    loop {
        if let Some(status) = final_status(&received)? {
            return Ok(status);
        }
        let room = HEAD_BYTES_MAX - received.len();
        if room == 0 {
            return Err(CheckError::TooLarge);
        }
        let mut bounded = (&mut stream).take(room as u64);
        if bounded.read_buf(&mut received).await.map_err(CheckError::Broken)? == 0 {
            return Err(CheckError::Closed);
        }
    }
}

/// The status of the first head that is not an interim one; `None` while it is incomplete.
fn final_status(mut received: &[u8]) -> Result<Option<u16>, CheckError> {
    loop {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(length) = head.parse(received).map_err(CheckError::Malformed)? else {
            return Ok(None);
        };
        match head.code {
            // A 101 ends HTTP on the connection, so no other head follows (RFC 9110 15.2.2).
            Some(100 | 102..=199) => received = &received[length..],
            code => return Ok(code),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    #[test]
    fn interim_heads_are_skipped() {
        let answer = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(final_status(answer).unwrap(), Some(204));
        for end in 0..answer.len() {
            assert_eq!(final_status(&answer[..end]).unwrap(), None, "{end}");
        }
        let switching = b"HTTP/1.1 101 Switching Protocols\r\n\r\n\x00\x01";
        assert_eq!(final_status(switching).unwrap(), Some(101));
    }

    #[test]
    fn the_check_uses_its_own_port() {
        let address = EndpointAddress::Ip("127.0.0.1:3000".parse().unwrap());
        assert_eq!(asked_address(&address, None), address);
        assert_eq!(asked_address(&address, Some(8080)).to_string(), "127.0.0.1:8080");
        let path = EndpointAddress::Unix("/run/app.sock".into());
        assert_eq!(asked_address(&path, Some(8080)), path);
    }

    #[test]
    fn requests_identify_sluice_and_close() {
        let request = request("/up?x", "h:80");
        let mut fields = [httparse::EMPTY_HEADER; 8];
        let mut head = httparse::Request::new(&mut fields);
        assert!(head.parse(&request).unwrap().is_complete());
        assert_eq!((head.method, head.path), (Some("GET"), Some("/up?x")));
        let field = |name| head.headers.iter().find(|field| field.name == name).unwrap().value;
        assert_eq!(field("Host"), b"h:80");
        assert_eq!(field("Connection"), b"close");
        assert!(field("User-Agent").starts_with(b"sluice/"));
        assert!(field("User-Agent").ends_with(b" health-check"));
    }

    fn ask_in_memory(answer: Vec<u8>, piece: usize) -> Result<u16, CheckError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (near, mut far) = tokio::io::duplex(piece);
            let answering = tokio::spawn(async move {
                let mut asked = [0; 7];
                far.read_exact(&mut asked).await.unwrap();
                // The check may close before it has read everything.
                let _ = far.write_all(&answer).await;
            });
            let result = ask(near, b"request").await;
            answering.await.unwrap();
            result
        })
    }

    #[test]
    fn head_size_is_limited() {
        let head = |bytes: usize| {
            let frame = "HTTP/1.1 200 OK\r\nA: \r\n\r\n".len();
            format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(bytes - frame)).into_bytes()
        };
        assert_eq!(ask_in_memory(head(HEAD_BYTES_MAX), 4096).unwrap(), 200);
        assert!(matches!(ask_in_memory(head(HEAD_BYTES_MAX + 1), 4096), Err(CheckError::TooLarge)));
    }

    #[test]
    fn other_responses_are_named() {
        assert!(matches!(ask_in_memory(b"HTTP/1.1 200 OK\r\n".to_vec(), 64), Err(CheckError::Closed)));
        assert!(matches!(ask_in_memory(b"SSH-2.0\r\n".to_vec(), 64), Err(CheckError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_result(piece in 1..64usize, interim in 0..4usize, status in 200..600u16) {
            let answer = format!("{}HTTP/1.1 {status} X\r\nA: b\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n".repeat(interim));
            prop_assert_eq!(ask_in_memory(answer.into_bytes(), piece).unwrap(), status);
        }

        #[test]
        fn arbitrary_bytes_do_no_harm(answer in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = ask_in_memory(answer, 64);
        }
    }
}
