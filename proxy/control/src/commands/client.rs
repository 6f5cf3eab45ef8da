//! The client of the control socket, for the command line.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use nix::unistd::Uid;
use serde_json::Value;

use super::socket::is_trusted;

/// Why a command had no effect.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process is listening.
    #[error("no sluice is listening on {}: {source}", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The process belongs to another user.
    #[error("{} belongs to a process of another user (uid {owner}); no command was sent", path.display())]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// Its user.
        owner: u32,
    },
    /// The connection broke; the outcome of the command is unknown.
    #[error("no response from sluice: {0}")]
    Broken(String),
    /// The command was refused.
    #[error("{}", refusal(.0))]
    Refused(Value),
}

impl ClientError {
    /// Whether the same command may succeed later: another change is in progress.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(body) if body["busy"] == true)
    }
}

fn refusal(body: &Value) -> String {
    let mistakes = body["mistakes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if mistakes.is_empty() {
        return body["error"].as_str().unwrap_or("refused").to_owned();
    }
    mistakes.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

/// Sends a command to the sluice that listens on `socket`, and waits for the outcome without a time limit.
///
/// # Errors
/// If it cannot be reached, or refuses.
pub fn call(socket: &Path, path: &str, body: &Value) -> Result<Value, ClientError> {
    request(socket, "POST", path, body.to_string())
}

/// The same with any method; the body is JSON or empty.
///
/// # Errors
/// If it cannot be reached, or refuses.
pub fn request(socket: &Path, method: &str, path: &str, body: String) -> Result<Value, ClientError> {
    let broken = |error: &dyn std::fmt::Display| ClientError::Broken(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| broken(&error))?;
    runtime.block_on(async {
        let stream = tokio::net::UnixStream::connect(socket)
            .await
            .map_err(|source| ClientError::Unreachable { path: socket.to_owned(), source })?;
        let peer = stream.peer_cred().map_err(|error| broken(&error))?.uid();
        if !is_trusted(socket, Uid::from_raw(peer)) {
            return Err(ClientError::Stranger { path: socket.to_owned(), owner: peer });
        }
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.map_err(|error| broken(&error))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "sluice")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::<Bytes>::from(body))
            .map_err(|error| broken(&error))?;
        let response = sender.send_request(request).await.map_err(|error| broken(&error))?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|error| broken(&error))?.to_bytes();
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| broken(&error))?;
        if status.is_success() { Ok(value) } else { Err(ClientError::Refused(value)) }
    })
}
