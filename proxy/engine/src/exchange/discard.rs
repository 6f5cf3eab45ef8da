//! Reads the rest of a response that its client does not get, so that the connection can serve the next request. A stream
//! that is reset instead would count against all others of its connection.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use sluice_http::{Framing, Method, response_framing};
use sluice_net::buffers::SMALL_BYTES;
use tokio::time::timeout;

use super::SharedState;
use super::download::UpstreamSide;
use super::transfer::chunk_limits;
use crate::body::Transfer;

/// How long the client waits for it. An error page has mostly arrived with its head.
const PATIENCE: Duration = Duration::from_millis(100);

/// Reads and drops the body, as far as `drain_max` allows. What is larger or slower closes the connection.
pub(super) async fn discard(shared: &SharedState<'_>, method: Method, from: &mut UpstreamSide<'_>) {
    let Ok(framing) = response_framing(from.head, method) else { return };
    if framing == Framing::CloseDelimited || from.is_early || !from.head.keep_alive() {
        return;
    }
    shared.deadline.touch();
    let whole = {
        let reading = pin!(rest(shared, from, framing));
        within(reading).await
    };
    *from.reusable = whole;
}

async fn within(reading: impl Future<Output = bool>) -> bool {
    timeout(PATIENCE, reading).await.unwrap_or(false)
}

/// Whether all of it could be read.
async fn rest(shared: &SharedState<'_>, from: &mut UpstreamSide<'_>, framing: Framing) -> bool {
    let bytes_max = shared.limits.drain_bytes_max;
    let mut transfer = Transfer::new(framing, framing, chunk_limits(shared.limits), bytes_max);
    let mut scrap = Vec::new();
    loop {
        scrap.clear();
        if transfer.take(from.reader, &mut scrap).is_err() {
            return false;
        }
        if transfer.is_done() {
            return true;
        }
        if transfer.remaining().is_some_and(|remaining| remaining > bytes_max) {
            return false;
        }
        match from.reader.fill(SMALL_BYTES).await {
            // The end of a stream is no byte.
            Ok(0) => {
                return transfer.look_for_end(from.reader, &mut scrap).is_ok() && transfer.is_done();
            }
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}
