//! Server-sent events: the status document, then its changes every second.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::Body;
use crate::status::Live;

/// Maximum number of concurrent streams. Few people watch at a time, and ordinary requests keep most connections.
const STREAMS_MAX: usize = 16;

/// A stream ends when its reader does not read an event for this long.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The time at which a connection is closed.
#[derive(Clone)]
pub(super) struct Lease(Arc<Mutex<Instant>>);

impl Lease {
    pub(super) fn of(time: Duration) -> Self {
        Self(Arc::new(Mutex::new(Instant::now() + time)))
    }

    fn renew(&self, time: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + time;
    }

    fn end(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when it has expired.
    pub(super) async fn expired(&self) {
        loop {
            let end = self.end();
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// Slots for streams.
pub(crate) struct Streams(Arc<Semaphore>);

impl Default for Streams {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

impl Streams {
    /// Opens a stream whose connection stays open while its events are read; `None` if there are too many.
    pub(super) fn open(&self, live: &Live, lease: Lease) -> Option<Body> {
        let place: OwnedSemaphorePermit = Arc::clone(&self.0).try_acquire_owned().ok()?;
        let follow = live.follow();
        let first = Some(live.first_event());
        let events = stream::unfold((first, follow, place), move |(first, mut follow, place)| {
            let lease = lease.clone();
            async move {
                let event: Bytes = match first {
                    Some(first) => first,
                    None => {
                        follow.changed().await.ok()?;
                        follow.borrow_and_update().clone()
                    }
                };
                // Reached only when the reader has read everything before.
                lease.renew(STALL_TIMEOUT);
                Some((Ok::<_, Infallible>(Frame::data(event)), (None, follow, place)))
            }
        });
        Some(StreamBody::new(events).boxed_unsync())
    }
}
