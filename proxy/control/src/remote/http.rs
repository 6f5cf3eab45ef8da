//! Requests to the servers of sources: answers with a bound, and streams of lines.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sluice_config::{ClientCertificate, HttpUrl};
use sluice_core::tls::{crypto, system_roots};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::error::RemoteError;
use crate::outbound::{self, Connection, with_causes};

/// To connect, and to begin an answer that does not wait for a change.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// The same if there are other servers.
const OF_SEVERAL: Duration = Duration::from_secs(1);
/// The largest answer, and the longest line of a stream.
const BYTES_MAX: usize = 32 << 20;
/// Bytes of an answer that is an error.
const ERROR_BYTES_MAX: usize = 300;
/// The largest file with a secret.
const SECRET_BYTES_MAX: u64 = 64 << 10;

/// The servers of a source, of which one is used.
pub(crate) struct Servers {
    urls: Vec<HttpUrl>,
    current: usize,
    tls: Option<Arc<ClientConfig>>,
}

/// An answer that has begun. Its connection lives as long.
pub(crate) struct Answer {
    response: Response<Incoming>,
    connection: JoinHandle<()>,
    /// What must not be in a log.
    secrets: Vec<String>,
}

/// An answer, line by line.
pub(crate) struct Lines {
    answer: Answer,
    buffer: BytesMut,
}

impl Servers {
    /// For these URLs. Certificates are verified by the CAs of `ca_file`, otherwise by the system's.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn new(
        urls: Vec<HttpUrl>,
        ca_file: Option<&Path>,
        certificate: Option<&ClientCertificate>,
    ) -> Result<Self, RemoteError> {
        let is_needed = urls.iter().any(|url| url.tls);
        let tls = is_needed.then(|| client_config(ca_file, certificate)).transpose()?.map(Arc::new);
        let current = fastrand::usize(..urls.len().max(1));
        Ok(Self { urls, current, tls })
    }

    /// Uses another one from now on.
    pub(crate) fn rotate(&mut self) {
        self.current = self.current.wrapping_add(1);
    }

    /// Asks for something, and waits this long for the head of the answer.
    ///
    /// # Errors
    /// There is no answer, or its status is not 200.
    pub(crate) async fn get(
        &self,
        target: &str,
        headers: &HeaderMap,
        patience: Duration,
    ) -> Result<Answer, RemoteError> {
        self.send(Request::get(target), headers, Bytes::new(), patience).await
    }

    /// Sends a body, and waits for the head of the answer.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) async fn post(
        &self,
        target: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Answer, RemoteError> {
        self.send(Request::post(target), headers, body, PATIENCE).await
    }

    /// Replaces something, and returns the status as well: it says more than whether it is done.
    ///
    /// # Errors
    /// There is no answer.
    pub(crate) async fn put(
        &self,
        target: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Answer, RemoteError> {
        self.ask(Request::put(target), headers, body, PATIENCE).await
    }

    /// As [`Self::get`], whatever the status.
    ///
    /// # Errors
    /// There is no answer.
    pub(crate) async fn look(
        &self,
        target: &str,
        headers: &HeaderMap,
        patience: Duration,
    ) -> Result<Answer, RemoteError> {
        self.ask(Request::get(target), headers, Bytes::new(), patience).await
    }

    async fn send(
        &self,
        request: http::request::Builder,
        headers: &HeaderMap,
        body: Bytes,
        patience: Duration,
    ) -> Result<Answer, RemoteError> {
        let answer = self.ask(request, headers, body, patience).await?;
        let url = self.urls.get(self.current % self.urls.len().max(1));
        answer.good().await.map_err(|error| match url {
            Some(url) => error.of(url),
            None => error,
        })
    }

    async fn ask(
        &self,
        request: http::request::Builder,
        headers: &HeaderMap,
        body: Bytes,
        patience: Duration,
    ) -> Result<Answer, RemoteError> {
        let url = self.urls.get(self.current % self.urls.len().max(1)).ok_or("no server is configured")?;
        let said = |error: &dyn std::error::Error| format!("{url}: {}", with_causes(error));
        let late = |_| format!("{url}: no answer in time");
        // If there are others, one that hangs is not waited for long.
        let patience = if self.urls.len() > 1 { patience.min(OF_SEVERAL) } else { patience };
        let stream = timeout(patience.min(PATIENCE), outbound::connect_by(url, self.tls.as_ref()))
            .await
            .map_err(late)?;
        let mut request = request.header("host", url.address.to_string());
        if let Some(into) = request.headers_mut() {
            into.extend(headers.clone());
        }
        let request = request.body(Full::new(body)).map_err(|error| said(&error))?;
        let answer = ask(stream.map_err(|error| said(&error))?, request, patience).await;
        answer.map_err(|error| error.of(url))
    }
}

/// Sends a request over a new connection, and waits this long for the head of the answer.
///
/// # Errors
/// There is no answer, or its status is not 200.
pub(crate) async fn exchange(
    stream: Connection,
    request: Request<Full<Bytes>>,
    patience: Duration,
) -> Result<Answer, RemoteError> {
    ask(stream, request, patience).await?.good().await
}

async fn ask(
    stream: Connection,
    request: Request<Full<Bytes>>,
    patience: Duration,
) -> Result<Answer, RemoteError> {
    let said = |error: hyper::Error| with_causes(&error);
    let secrets = secrets_of(request.headers());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(said)?;
    let connection = tokio::spawn(async move { _ = connection.await });
    let response = timeout(patience, sender.send_request(request)).await;
    let response = response.map_err(|_| RemoteError::from("no answer in time"))?.map_err(said)?;
    Ok(Answer { response, connection, secrets })
}

impl Answer {
    /// Its status.
    pub(crate) fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Itself, if its status is 200.
    ///
    /// # Errors
    /// Its status, and how it begins.
    pub(crate) async fn good(self) -> Result<Self, RemoteError> {
        match self.status() {
            StatusCode::OK => Ok(self),
            status => {
                // A server may quote what it was sent.
                let secrets = self.secrets.clone();
                // One that begins within what is shown is read as a whole, so that it is found.
                let longest = secrets.iter().map(String::len).max().unwrap_or_default();
                let body = self.beginning(ERROR_BYTES_MAX + longest).await;
                let detail = shown(&body, &secrets);
                let text = format!("status {status} {detail}");
                // Whether a server that fails has done it is not known.
                Err(if status.is_client_error() { RemoteError::refusal(text) } else { text.into() })
            }
        }
    }

    /// A field of its head.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// All of it.
    ///
    /// # Errors
    /// It is too long, or ends early.
    pub(crate) async fn whole(self) -> Result<String, RemoteError> {
        self.text(BYTES_MAX).await
    }

    async fn text(mut self, most: usize) -> Result<String, RemoteError> {
        let body = Limited::new(self.response.body_mut(), most).collect();
        let body = timeout(PATIENCE, body).await.map_err(|_| "the answer does not end in time".to_owned())?;
        let bytes = body.map_err(|error| with_causes(&*error))?.to_bytes();
        String::from_utf8(bytes.into()).map_err(|_| "the answer is not UTF-8".into())
    }

    /// Its first bytes, for the log.
    async fn beginning(mut self, most: usize) -> String {
        let mut bytes = Vec::new();
        while bytes.len() < most
            && let Ok(Some(Ok(frame))) = timeout(PATIENCE, self.response.body_mut().frame()).await
        {
            frame.data_ref().into_iter().for_each(|data| bytes.extend_from_slice(data));
        }
        bytes.truncate(most);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// As a stream of lines.
    pub(crate) fn lines(self) -> Lines {
        Lines { answer: self, buffer: BytesMut::new() }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Lines {
    /// The next line; `None` at the end. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// The connection is lost, or the line is too long.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, RemoteError> {
        let mut looked = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.buffer[looked..]) {
                let line = self.buffer.split_to(looked + end + 1);
                return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
            }
            looked = self.buffer.len();
            if looked > BYTES_MAX {
                return Err("a line is too long".into());
            }
            match self.answer.response.body_mut().frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => {
                    return Ok(Some(String::from_utf8_lossy(&std::mem::take(&mut self.buffer)).into_owned()));
                }
                Some(frame) => {
                    let frame = frame.map_err(|error| with_causes(&error))?;
                    frame.data_ref().into_iter().for_each(|data| self.buffer.extend_from_slice(data));
                }
            }
        }
    }

    /// Whether a whole line has arrived.
    pub(crate) fn has_line(&self) -> bool {
        memchr::memchr(b'\n', &self.buffer).is_some()
    }
}

pub(crate) fn client_config(
    ca_file: Option<&Path>,
    certificate: Option<&ClientCertificate>,
) -> Result<ClientConfig, RemoteError> {
    let roots = match ca_file {
        None => system_roots().map_err(|error| error.to_string())?,
        Some(path) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            Arc::new(roots)
        }
    };
    let Some(ClientCertificate { cert, key }) = certificate else {
        return outbound::client_config(roots).map_err(|error| error.to_string().into());
    };
    let private = rustls::pki_types::PrivateKeyDer::from_pem_file(key);
    let private = private.map_err(|error| format!("{}: {error}", key.display()))?;
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let builder = builder.with_root_certificates(roots);
    builder
        .with_client_auth_cert(certificates(cert)?, private)
        .map_err(|error| format!("{}: {error}", cert.display()).into())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, RemoteError> {
    let said = |error| RemoteError::from(format!("{}: {error}", path.display()));
    CertificateDer::pem_file_iter(path).map_err(said)?.collect::<Result<_, _>>().map_err(said)
}

/// An answer as the log shows it: its beginning, without secrets.
fn shown(body: &str, secrets: &[String]) -> String {
    let mut body = secrets.iter().fold(body.to_owned(), |body, secret| body.replace(secret, "***"));
    for secret in secrets {
        // What was read may end within one.
        let cut =
            (1..secret.len()).rev().filter_map(|end| secret.get(..end)).find(|part| body.ends_with(part));
        body.truncate(body.len() - cut.map_or(0, str::len));
    }
    body.chars().filter(|one| !one.is_control()).take(ERROR_BYTES_MAX).collect()
}

/// The secret values of a request, and what follows their scheme.
fn secrets_of(headers: &HeaderMap) -> Vec<String> {
    let values = headers
        .values()
        .filter(|value| value.is_sensitive())
        .map(|value| String::from_utf8_lossy(value.as_bytes()));
    let parts = values.flat_map(|value| {
        let bare = value.split_once(' ').map(|(_, bare)| bare.to_owned());
        [Some(value.into_owned()), bare]
    });
    parts.flatten().filter(|part| !part.is_empty()).collect()
}

/// A secret in a file, without the end of its line.
///
/// # Errors
/// The file cannot be read, or is empty.
pub(crate) fn secret(path: &Path) -> Result<String, RemoteError> {
    let said = |error: &dyn std::fmt::Display| RemoteError::from(format!("{}: {error}", path.display()));
    let read = sluice_core::durable::read(path, SECRET_BYTES_MAX).map_err(|error| said(&error))?;
    let text = String::from_utf8(read.unwrap_or_default()).map_err(|error| said(&error.utf8_error()))?;
    let text = text.trim();
    if text.is_empty() { Err(said(&"it is missing or empty")) } else { Ok(text.to_owned()) }
}

/// Adds a field whose value is secret.
///
/// # Errors
/// The value has bytes that a field cannot have.
pub(crate) fn add_secret(
    headers: &mut HeaderMap,
    name: &'static str,
    value: &str,
) -> Result<(), RemoteError> {
    let mut value =
        http::HeaderValue::from_str(value).map_err(|_| format!("the secret for {name} has invalid bytes"))?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_with_and_without_their_scheme() {
        let mut headers = HeaderMap::new();
        assert!(add_secret(&mut headers, "authorization", "Bearer abc").is_ok());
        headers.insert("accept", http::HeaderValue::from_static("text/plain"));
        let secrets = secrets_of(&headers);
        assert_eq!(secrets, ["Bearer abc", "abc"]);
        assert_eq!(shown("no\r\n Bearer abc, abc", &secrets), "no ***, ***");
        assert_eq!(shown("it is Bearer ab", &secrets), "it is ");
        let late = format!("{}abcdef", "x".repeat(ERROR_BYTES_MAX - 3));
        assert!(shown(&late, &secrets).ends_with("x***"));
    }
}
