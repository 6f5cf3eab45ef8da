//! One health check: a small GET, of whose response only the head is read.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustls::pki_types::ServerName;
use sluice_config::HealthCheck;
use sluice_core::cluster::{Endpoint, EndpointAddress};
use sluice_core::tls::upstream::{Purpose, UpstreamSessions};
use sluice_core::tls::verify;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Maximum bytes of a response head, including interim responses (1xx).
const HEAD_BYTES_MAX: usize = 16 * 1024;

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
}

/// Connects, sends the request and compares the status, all within `timeout_ms`. Returns the status if it is an
/// expected one.
pub(crate) async fn check(
    endpoint: &Endpoint,
    tls: Option<&UpstreamSessions>,
    config: &HealthCheck,
) -> Result<u16, CheckError> {
    let host = config.host.as_deref().unwrap_or(&endpoint.host);
    let request = request(&config.path, host);
    let limit = Duration::from_millis(config.timeout_ms);
    let address = asked_address(&endpoint.address, config.port);
    let secured = tls.map(|tls| secured(tls, endpoint)).transpose()?;
    let asked = timeout(limit, connect_and_ask(&address, secured.as_ref(), &request)).await;
    let status = asked.map_err(|_| CheckError::Timeout(config.timeout_ms))??;
    let mut ranges = config.expected_statuses.iter();
    match ranges.any(|&(first, last)| (first..=last).contains(&status)) {
        true => Ok(status),
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
fn secured(tls: &UpstreamSessions, endpoint: &Endpoint) -> Result<Secured, CheckError> {
    let name = tls.server_name(&endpoint.host).map_err(|error| CheckError::Tls(error.to_string()))?;
    Ok(Secured { connector: TlsConnector::from(tls.client(Purpose::Http1)), name })
}

async fn connect_and_ask(
    address: &EndpointAddress,
    secured: Option<&Secured>,
    request: &[u8],
) -> Result<u16, CheckError> {
    match address {
        EndpointAddress::Ip(address) => {
            let stream = TcpStream::connect(address).await.map_err(CheckError::Connect)?;
            ask_over(stream, secured, request).await
        }
        EndpointAddress::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(CheckError::Connect)?;
            ask_over(stream, secured, request).await
        }
    }
}

async fn ask_over(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    secured: Option<&Secured>,
    request: &[u8],
) -> Result<u16, CheckError> {
    let Some(Secured { connector, name }) = secured else {
        return ask(stream, request).await;
    };
    let stream = connector.connect(name.clone(), stream).await;
    ask(stream.map_err(|error| CheckError::Tls(verify::describe_io(&error)))?, request).await
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
