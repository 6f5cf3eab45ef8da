//! One GET of JSON from a local control listener. Blocking, with time limits; not an HTTP client.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Reached only by a hang.
const DEADLINE: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The response to `path` at `address`: `host:port`, or `unix:/path`, with or without a scheme.
///
/// # Errors
/// When there is no listener, the status is not 200, or the body is not JSON.
pub(super) fn get(address: &str, path: &str) -> Result<Value> {
    let answer = ask(address, path).with_context(|| format!("request to {address}"))?;
    let (head, body) =
        answer.split_once("\r\n\r\n").with_context(|| format!("{address} does not speak HTTP"))?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.contains(" 200"), "{address} responds to {path:?} with {status:?}");
    serde_json::from_str(body).with_context(|| format!("the response of {address} is not JSON"))
}

fn ask(address: &str, path: &str) -> Result<String> {
    // With HTTP/1.0 the body ends with the connection and is never chunked.
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let address =
        ["http://", "tcp://"].iter().fold(address, |rest, scheme| rest.strip_prefix(scheme).unwrap_or(rest));
    if let Some(file) = address.strip_prefix("unix:") {
        // `unix:///path`, as written by Puma, leaves three slashes.
        let stream = UnixStream::connect(format!("/{}", file.trim_start_matches('/')))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        return exchange(stream, &request);
    }
    let address = address.trim_end_matches('/');
    let resolved = address.to_socket_addrs()?.next().context("the name has no address")?;
    let stream = TcpStream::connect_timeout(&resolved, DEADLINE)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    exchange(stream, &request)
}

fn exchange(mut stream: impl Read + Write, request: &str) -> Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    fn answered(answer: &'static str) -> Result<Value> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut piece = [0; 512];
            let count = stream.read(&mut piece).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&piece[..count]).into_owned()
        });
        let value = get(&format!("tcp://{address}"), "/stats?token=t");
        assert!(server.join().unwrap().starts_with("GET /stats?token=t HTTP/1.0\r\n"));
        value
    }

    #[test]
    fn json_is_read_and_other_statuses_are_errors() {
        assert_eq!(answered("HTTP/1.0 200 OK\r\n\r\n{\"backlog\":3}").unwrap()["backlog"], 3);
        let error = answered("HTTP/1.0 403 Forbidden\r\n\r\nno").unwrap_err().to_string();
        assert!(error.contains("403"), "{error}");
        assert!(answered("SSH-2.0").is_err());
    }
}
