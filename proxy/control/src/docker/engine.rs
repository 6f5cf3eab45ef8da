//! Docker's API, which Podman speaks as well: a list of containers, and events.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::collections::BTreeMap;
use tokio::net::UnixStream;

use crate::remote::RemoteError;
use crate::remote::http::{Answer, Lines, PATIENCE, exchange};

/// The label that makes a container one of ours.
const LABEL: &str = "sluice.host";

/// The engine that listens on a socket.
pub(super) struct Engine {
    socket: PathBuf,
}

/// A container, as the list has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) names: Option<Vec<String>>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    /// Seconds of Unix time.
    pub(super) created: i64,
    pub(super) state: String,
    /// For people: `Up 3 seconds (healthy)`.
    pub(super) status: String,
    pub(super) ports: Option<Vec<Port>>,
    pub(super) network_settings: Option<Networks>,
}

/// A port that it exposes or publishes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Port {
    pub(super) private_port: u16,
    pub(super) public_port: Option<u16>,
    #[serde(rename = "Type")]
    pub(super) kind: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Networks {
    pub(super) networks: Option<BTreeMap<String, Network>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Network {
    #[serde(rename = "IPAddress")]
    pub(super) ip_address: Option<String>,
    #[serde(rename = "GlobalIPv6Address")]
    pub(super) ipv6_address: Option<String>,
}

impl Engine {
    pub(super) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// The running containers with our label.
    pub(super) async fn containers(&self) -> Result<Vec<Container>, RemoteError> {
        let target = format!("/containers/json?filters={}", encode(&format!(r#"{{"label":["{LABEL}"]}}"#)));
        let text = self.get(&target).await?.whole().await?;
        serde_json::from_str(&text).map_err(|error| format!("not what Docker answers: {error}").into())
    }

    /// Events of containers, a line each, from now on.
    pub(super) async fn events(&self) -> Result<Lines, RemoteError> {
        let target = format!("/events?filters={}", encode(r#"{"type":["container"]}"#));
        Ok(self.get(&target).await?.lines())
    }

    async fn get(&self, target: &str) -> Result<Answer, RemoteError> {
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", self.socket.display());
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| said(&error))?;
        let request = Request::get(target).header("host", "docker").body(Full::new(Bytes::new()));
        let request = request.map_err(|error| said(&error))?;
        let answer = exchange(TokioIo::new(Box::new(stream)), request, PATIENCE).await;
        answer.map_err(|error| said(&error).into())
    }
}

/// Percent-encoding of everything that a query does not take as it is.
fn encode(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let one = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}
