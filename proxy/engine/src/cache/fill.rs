//! A request that goes to the application, and whose response may be kept.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use bytes::Bytes;
use sluice_cache::{
    Admission, Caller, Epoch, ExchangeTimes, Outcome, Refusal, RequestFacts, Room, Store, StoredResponse,
    Ticket,
};
use sluice_core::clock;
use sluice_core::error::Reason;
use sluice_http::{FieldEdits, FieldKind, RequestHead, ResponseHead, is_same_weakly};

use super::CacheStatus;

/// Fields that ask for a part of a response, or for none: what is kept is whole.
const PARTIAL: [&[u8]; 5] = [b"if-none-match", b"if-modified-since", b"if-match", b"range", b"if-range"];

/// What the exchange of such a request knows.
pub(crate) struct Fill {
    store: Arc<Store>,
    key: Box<[u8]>,
    /// How the request came.
    origin: Box<[u8]>,
    epoch: Epoch,
    /// Held for those that wait; `None` if nobody does, and once they are told.
    ticket: RefCell<Option<Ticket>>,
    purpose: Purpose,
    /// Whether the whole response is asked for, whatever the client wants of it.
    is_whole: bool,
    asked_ms: u64,
    is_stored: Cell<bool>,
}

/// Why a request goes to the application, and for whom.
pub(crate) struct Purpose {
    /// The stored response that may still be right.
    pub(crate) stale: Option<Arc<StoredResponse>>,
    /// Whether the application may know who has sent the request.
    pub(crate) has_credentials: bool,
    /// Whether sluice encodes the responses of the route, so that the application need not.
    pub(crate) drops_encoding: bool,
    /// Whether its client waits for nothing.
    pub(crate) is_detached: bool,
    /// Why, as Cache-Status names it.
    pub(crate) why: &'static str,
}

/// What the cache of a route has to do with an exchange.
#[derive(Clone, Copy)]
pub(crate) enum CachePart<'a> {
    /// There is none.
    Off,
    /// Nothing, although there is one; and why, as Cache-Status names it.
    Bypassed(&'static str),
    /// It may keep the response.
    Fill(&'a Fill),
}

impl<'a> CachePart<'a> {
    pub(crate) fn fill(self) -> Option<&'a Fill> {
        if let Self::Fill(fill) = self { Some(fill) } else { None }
    }

    /// What Cache-Status says of the response of the application; `None` without a cache.
    pub(crate) fn status(self) -> Option<CacheStatus> {
        match self {
            Self::Off => None,
            Self::Bypassed(why) => Some(CacheStatus::Bypassed(why)),
            Self::Fill(fill) => Some(fill.status()),
        }
    }
}

/// What is done with a response.
pub(crate) enum Judgement {
    /// It goes to its client alone.
    Pass,
    /// It is kept, once its body has arrived.
    Keep(Box<Admission>),
    /// A stored response takes its place.
    Use(Arc<StoredResponse>, CacheStatus),
}

impl Fill {
    pub(crate) fn new(
        store: &Arc<Store>,
        (key, origin): (&[u8], &[u8]),
        ticket: Option<Ticket>,
        purpose: Purpose,
    ) -> Self {
        Self {
            epoch: store.epoch(),
            store: Arc::clone(store),
            key: key.into(),
            origin: origin.into(),
            is_whole: ticket.is_some() || purpose.stale.is_some(),
            ticket: RefCell::new(ticket),
            purpose,
            asked_ms: clock::unix_ms(),
            is_stored: Cell::new(false),
        }
    }

    /// The stored response that may still be right.
    pub(crate) fn stale(&self) -> Option<&Arc<StoredResponse>> {
        self.purpose.stale.as_ref()
    }

    /// Whether no client waits for it.
    pub(crate) fn is_detached(&self) -> bool {
        self.purpose.is_detached
    }

    /// The changes of the request: those of the route, and those for the cache.
    pub(crate) fn edits(&self, of_route: Option<&FieldEdits>) -> Option<FieldEdits> {
        if !self.is_whole && !self.purpose.drops_encoding {
            return None;
        }
        let mut edits = of_route.cloned().unwrap_or_default();
        if self.is_whole {
            edits.remove.extend(PARTIAL.map(<[u8]>::to_vec));
        }
        if self.purpose.drops_encoding {
            // Without the field, it could choose any.
            edits.set.push((b"Accept-Encoding".to_vec(), b"identity".to_vec()));
        }
        if let Some(stale) = &self.purpose.stale {
            let mut ask = |name: &[u8], stored: &[u8]| {
                edits.set.extend(stale.head().get(stored).map(|value| (name.to_vec(), value.to_vec())));
            };
            ask(b"If-None-Match", b"etag");
            ask(b"If-Modified-Since", b"last-modified");
        }
        Some(edits)
    }

    /// What is done with a response. Those that wait are told, unless it is kept.
    pub(crate) fn judge(
        &self,
        request: &RequestHead,
        head: &ResponseHead,
        edits: Option<&FieldEdits>,
    ) -> Judgement {
        let now_ms = clock::unix_ms();
        let when = ExchangeTimes { asked_ms: self.asked_ms, received_ms: now_ms };
        let config = self.store.config();
        let is_ours = |name: &[u8]| {
            is_written_by_sluice(name) || edits.is_some_and(|edits| edits.takes_out(name) || edits.adds(name))
        };
        let is_dropped = |name: &[u8]| self.purpose.drops_encoding && name == b"accept-encoding";
        let caller = Caller { request, origin: &self.origin, has_credentials: self.purpose.has_credentials };
        let asked = RequestFacts { caller, is_ours: &is_ours, is_dropped: &is_dropped };
        match (&self.purpose.stale, head.status()) {
            (Some(stale), 304) => {
                let refreshed = stale.refreshed(&asked, head, when, &config);
                let is_same = is_same_content(stale.head(), head);
                let used = match refreshed {
                    Some((new, true)) if is_same => {
                        self.is_stored.set(self.store.keep(&self.key, &new.stored, Some(stale), self.epoch));
                        self.settle(Outcome::Stored);
                        new.for_client()
                    }
                    refreshed => {
                        self.store.forget_one(&self.key, stale);
                        self.settle(Outcome::Passed);
                        refreshed.map_or_else(|| Arc::clone(stale), |(new, _)| new.for_client())
                    }
                };
                Judgement::Use(used, CacheStatus::Revalidated)
            }
            (Some(stale), 500 | 502..=504) if stale.replaces_error(now_ms) => {
                self.settle(Outcome::Failed(u16::MAX));
                Judgement::Use(Arc::clone(stale), CacheStatus::Stale)
            }
            (_, status) => match Admission::of(&asked, head, when, &config) {
                // A client's own condition or range may have shaped it.
                Ok(admission) if self.is_whole || !asks_for_part(request) => {
                    Judgement::Keep(Box::new(admission))
                }
                Err(Refusal::OfCaller) => {
                    self.settle(Outcome::OfCaller);
                    Judgement::Pass
                }
                // The application fails: those that wait try one after the other, not all at once.
                Err(Refusal::OfResponse) if status >= 500 => {
                    self.settle(Outcome::Abandoned);
                    Judgement::Pass
                }
                _ => {
                    self.give_up();
                    Judgement::Pass
                }
            },
        }
    }

    /// Keeps a response whose body has arrived; returns it as its client gets it.
    pub(crate) fn keep(&self, admission: Admission, body: Bytes, room: Room) -> Option<Arc<StoredResponse>> {
        let admitted = admission.complete(body, room)?;
        self.is_stored.set(self.store.keep(
            &self.key,
            &admitted.stored,
            self.purpose.stale.as_ref(),
            self.epoch,
        ));
        self.settle(Outcome::Stored);
        Some(admitted.for_client())
    }

    /// Keeps nothing: the response is not for others, or there is no room. What is stored is older.
    pub(crate) fn give_up(&self) {
        self.is_stored.set(false);
        if let Some(stale) = &self.purpose.stale {
            self.store.forget_one(&self.key, stale);
        }
        self.store.pass(&self.key, clock::unix_ms());
        self.settle(Outcome::Passed);
    }

    /// Room for a body, of a length if that is known.
    pub(crate) fn room(&self, length: Option<u64>) -> Option<Room> {
        self.store.room(length)
    }

    /// Tells those that wait; the first word counts.
    pub(crate) fn settle(&self, outcome: Outcome) {
        if let Some(ticket) = self.ticket.borrow_mut().take() {
            ticket.settle(outcome);
        }
    }

    /// Tells those that wait why there is no response, if they would get none either.
    pub(crate) fn fail(&self, reason: Reason) {
        if !is_of_all(reason) {
            return self.settle(Outcome::Abandoned);
        }
        let index = Reason::ALL.iter().position(|other| *other == reason);
        self.settle(Outcome::Failed(index.and_then(|index| u16::try_from(index).ok()).unwrap_or(u16::MAX)));
    }

    /// From now on, the response is copied as it passes.
    pub(crate) fn begin_copy(&self) {
        self.is_stored.set(true);
    }

    /// What Cache-Status says of the response of the application.
    pub(crate) fn status(&self) -> CacheStatus {
        CacheStatus::Miss { why: self.purpose.why, is_stored: self.is_stored.get() }
    }

    /// The stale response that is used because there is no other one, if it may be.
    pub(crate) fn instead(&self) -> Option<&Arc<StoredResponse>> {
        let most_ms = self.store.config().stale_on_failure_ms;
        self.purpose.stale.as_ref().filter(|stale| stale.replaces_failure(clock::unix_ms(), most_ms))
    }
}

/// Whether a 304 is about this content: one with another tag was made for something else (RFC 9111 section 4.3.4).
fn is_same_content(stored: &ResponseHead, head: &ResponseHead) -> bool {
    let tags = stored.get(b"etag").zip(head.get(b"etag"));
    tags.is_none_or(|(old, new)| is_same_weakly(old, new))
}

/// Whether a failure is that of the application, whatever the request.
fn is_of_all(reason: Reason) -> bool {
    use Reason::{ConnectFailed, ConnectRefused, ConnectTimeout, NoEndpoint, ResponseTimeout};
    matches!(reason, ConnectFailed | ConnectRefused | ConnectTimeout | NoEndpoint | ResponseTimeout)
        || reason.status() == 503
}

/// Whether a request asks for a part, or for nothing if it has not changed.
fn asks_for_part(request: &RequestHead) -> bool {
    request.fields().any(|field| PARTIAL.iter().any(|name| field.name.eq_ignore_ascii_case(name)))
}

/// Whether sluice says it to the application, so that it is another value for each client.
fn is_written_by_sluice(name: &[u8]) -> bool {
    use FieldKind::{
        Claim, Forwarded, Identity, Lookalike, Via, XForwardedFor, XForwardedHost, XForwardedProto,
    };
    let is_trace = matches!(name, b"traceparent" | b"tracestate");
    is_trace
        || matches!(
            FieldKind::of(name),
            Claim
                | Forwarded
                | Identity
                | Lookalike
                | Via
                | XForwardedFor
                | XForwardedHost
                | XForwardedProto
                | FieldKind::XRequestId
                | FieldKind::XRequestStart
        )
}
