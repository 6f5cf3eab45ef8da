//! Names that clients ask for and nobody has written down: who may have a certificate is asked, and not again for a while.

use crate::acme::AcmeError;
use std::collections::HashMap;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use sluice_config::{Address, OnDemand, Question, is_issuable};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::failure::with_causes;

/// Names that are remembered, so that nobody is asked about them again. Beyond that the oldest half is forgotten.
const DENIED_MAX: usize = 10_000;

/// What is known of names that may have no certificate.
#[derive(Debug, Default)]
pub(super) struct Denied {
    /// Until when each is not asked about, in milliseconds of Unix time.
    until_ms: HashMap<String, u64>,
}

impl Denied {
    /// Whether to ask about `name` now. Never about what no authority would issue anything for.
    pub(super) fn may_ask(&mut self, name: &str, now_ms: u64) -> bool {
        if !is_issuable(name) || !name.contains('.') {
            return false;
        }
        self.until_ms.get(name).is_none_or(|until_ms| *until_ms <= now_ms)
    }

    /// Has `name` not asked about for a while.
    pub(super) fn note(&mut self, name: String, until_ms: u64, now_ms: u64) {
        if self.until_ms.len() >= DENIED_MAX {
            self.make_room(now_ms);
        }
        self.until_ms.insert(name, until_ms);
    }

    /// Forgets names whose time is over, and of the others those that end first, until half of the room is free. To refuse
    /// further names instead would let a scanner keep every new customer out for as long as it likes.
    fn make_room(&mut self, now_ms: u64) {
        let mut ends: Vec<u64> = self.until_ms.values().copied().collect();
        let (_, middle, _) = ends.select_nth_unstable(DENIED_MAX / 2);
        let least = now_ms.max(*middle);
        self.until_ms.retain(|_, until_ms| *until_ms > least);
    }
}

/// Asks whether `name` may have a certificate: 200 is yes, 400 to 499 is no.
///
/// # Errors
/// Why that is not known.
pub(super) async fn ask(config: &OnDemand, name: &str) -> Result<bool, AcmeError> {
    let asked = timeout(Duration::from_millis(config.timeout_ms), exchange(config, name)).await;
    match asked.unwrap_or_else(|_| Err(format!("no answer within {} ms", config.timeout_ms).into()))? {
        200 => Ok(true),
        400..=499 => Ok(false),
        status => Err(format!("status {status}").into()),
    }
}

async fn exchange(config: &OnDemand, name: &str) -> Result<u16, AcmeError> {
    let url = &config.ask_url;
    let stream = match &url.address {
        Address::Ip(address) => TcpStream::connect(address).await,
        Address::Name(host, port) => TcpStream::connect((host.as_str(), *port)).await,
        Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
    };
    let stream = stream.map_err(|error| error.to_string())?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| with_causes(&error))?;
    // A name that is issuable needs no escapes.
    let (key, host) = match config.question {
        Question::Domain => ("domain", url.address.to_string()),
        Question::Host => ("host", url.address.to_string()),
        Question::OwnHost => ("host", name.to_owned()),
    };
    let separator = if url.path.contains('?') { '&' } else { '?' };
    let request = Request::get(format!("{}{separator}{key}={name}", url.path))
        .header(HOST, host)
        .header(USER_AGENT, concat!("sluice/", env!("CARGO_PKG_VERSION")))
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answered = async move {
        let answer = sender.send_request(request).await.map_err(|error| with_causes(&error))?;
        // What follows the head is of no interest; the connection goes with it.
        Ok(answer.status().as_u16())
    };
    // The connection's own result adds nothing: what matters of it comes out of the request as well.
    let (answer, _) = tokio::join!(answered, connection);
    answer
}
