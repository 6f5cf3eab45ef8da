//! On-demand names: asks whether a name may have a certificate, and remembers refusals for a while.

use crate::acme::AcmeError;
use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use sluice_config::{OnDemand, Question, is_issuable};
use tokio::time::timeout;

use crate::outbound;
use crate::outbound::with_causes;

/// Maximum number of remembered refusals. Beyond it, the oldest half is dropped.
const DENIED_MAX: usize = 10_000;

/// Names that were refused.
#[derive(Debug, Default)]
pub(super) struct Denied {
    /// When each may be asked about again, in milliseconds of Unix time.
    until_ms: HashMap<String, u64>,
}

impl Denied {
    /// Whether to ask about `name` now. Never for names that no authority would issue a certificate for.
    pub(super) fn may_ask(&mut self, name: &str, now_ms: u64) -> bool {
        if !is_issuable(name) || !name.contains('.') {
            return false;
        }
        self.until_ms.get(name).is_none_or(|until_ms| *until_ms <= now_ms)
    }

    /// Remembers a refusal of `name` until `until_ms`.
    pub(super) fn note(&mut self, name: String, until_ms: u64, now_ms: u64) {
        if self.until_ms.len() >= DENIED_MAX {
            self.make_room(now_ms);
        }
        self.until_ms.insert(name, until_ms);
    }

    /// Drops expired names, and then those that expire first, until half of the table is free. Refusing further names
    /// instead would let a scanner keep every new customer out indefinitely.
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
/// Why there is no decision.
pub(super) async fn ask(config: &OnDemand, name: &str) -> Result<bool, AcmeError> {
    let asked = timeout(Duration::from_millis(config.timeout_ms), exchange(config, name)).await;
    match asked.unwrap_or_else(|_| Err(format!("no response within {} ms", config.timeout_ms).into()))? {
        200 => Ok(true),
        400..=499 => Ok(false),
        status => Err(format!("status {status}").into()),
    }
}

async fn exchange(config: &OnDemand, name: &str) -> Result<u16, AcmeError> {
    let url = &config.ask_url;
    let stream = outbound::connect(url).await.map_err(|error| error.to_string())?;
    let handshake = hyper::client::conn::http1::handshake(stream).await;
    let (mut sender, connection) = handshake.map_err(|error| with_causes(&error))?;
    // An issuable name needs no escapes.
    let (key, host) = match config.question {
        Question::Domain => ("domain", url.authority()),
        Question::Host => ("host", url.authority()),
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
        // Only the head matters; the connection is closed with the rest.
        Ok(answer.status().as_u16())
    };
    // The result of the connection adds nothing: the request reports every error that matters.
    let (answer, _) = tokio::join!(answered, connection);
    answer
}
