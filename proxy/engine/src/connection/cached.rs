//! Looks for the response of a route with a cache, and decides which request goes to the application for it.

use std::ops::ControlFlow::{self, Break, Continue};
use std::rc::Rc;
use std::sync::Arc;

use sluice_cache::{Caller, Found, Outcome, Resource, Store, Stored, Ticket, Turn, Use, Waiting};
use sluice_core::clock;
use sluice_core::error::Reason;
use sluice_http::Method;
use sluice_net::stream::Stream;
use tokio::time::timeout_at;

use super::account::Account;
use super::{Connection, Next};
use crate::body::Transfer;
use crate::cache::{CacheStatus, Fill, Purpose, Sink, is_plain_request, write_origin};
use crate::progress::Progress;
use crate::response::Local;
use crate::snapshot::RouteEntry;

/// How often a request looks again, after others have brought responses that are not for it.
const LOOKS_MAX: usize = 8;

/// How a request with a cache goes to its application.
pub(super) enum Errand {
    /// Its response may be kept.
    Fill(Box<Fill>),
    /// Without the cache; and why, as Cache-Status names it.
    Bypass(&'static str),
}

/// What a request is to the cache.
struct Look<'l> {
    store: &'l Arc<Store>,
    entry: &'l RouteEntry,
    key: Vec<u8>,
    origin: Vec<u8>,
    has_credentials: bool,
}

/// What a request has waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    Never,
    /// A response that is stored now.
    ForResponse,
    /// Another request that takes long.
    TooLong,
}

/// What comes of one look.
enum Seen {
    /// The client gets this response.
    Answer(Arc<Stored>, CacheStatus),
    /// The same, and the application is asked whether it has changed.
    AnswerAndAsk(Arc<Stored>),
    /// The request goes to the application.
    Go(Errand),
    /// It waits for another one.
    Wait(Waiting, Option<Arc<Stored>>),
}

impl Connection {
    /// Responds from the cache, or says how the request goes to the application.
    pub(super) async fn look_in_cache(
        &mut self,
        store: &Arc<Store>,
        entry: &RouteEntry,
        account: &Account,
        transfer: &Transfer,
    ) -> ControlFlow<Next, Errand> {
        let method = self.session.head.method();
        if !matches!(method, Method::Get | Method::Head) {
            return Continue(Errand::Bypass("method"));
        }
        // An application may read the body of a GET, and nobody else's has the same.
        let has_body = !transfer.is_done() || transfer.has_carried();
        if has_body || !is_plain_request(&self.session.head) {
            return Continue(Errand::Bypass("bypass"));
        }
        let look = self.look(store, entry, account);
        let mut waited = Waited::Never;
        for _ in 0..LOOKS_MAX {
            let (mut waiting, stale) = match self.see(&look, waited) {
                Seen::Answer(stored, status) => {
                    let progress = Progress::default();
                    return Break(
                        self.send_stored(&stored, status, entry, account, (transfer, progress)).await,
                    );
                }
                Seen::AnswerAndAsk(stored) => {
                    self.ask_behind(&look, &stored, account);
                    let (status, progress) = (CacheStatus::Stale, Progress::default());
                    return Break(
                        self.send_stored(&stored, status, entry, account, (transfer, progress)).await,
                    );
                }
                Seen::Go(_) if store.wants_stored_only(&self.session.head) => {
                    let local = Local::status(504);
                    let keep_alive = self.answer_and_record(account, &local, self.may_continue(), None).await;
                    return Break(if keep_alive { Next::KeepAlive } else { self.last_answer(transfer) });
                }
                Seen::Go(errand) => return Continue(errand),
                Seen::Wait(waiting, stale) => (waiting, stale),
            };
            let outcome = timeout_at(waiting.until.into(), waiting.outcome());
            let Some(outcome) = self.unless_gone(outcome, transfer).await else {
                return Break(self.leave(account));
            };
            waited = Waited::Never;
            match outcome {
                Ok(Outcome::Abandoned) => {}
                Ok(Outcome::Stored) => waited = Waited::ForResponse,
                Ok(Outcome::Passed) => return Continue(Errand::Fill(Box::new(look.fill(None)))),
                Ok(Outcome::Failed(why)) => {
                    if let Some(next) = self.share_failure((why, stale), &look, account, transfer).await {
                        return Break(next);
                    }
                    return Continue(Errand::Fill(Box::new(look.fill(None))));
                }
                Err(_) => waited = Waited::TooLong,
            }
        }
        Continue(Errand::Fill(Box::new(look.fill(None))))
    }

    fn look<'l>(&self, store: &'l Arc<Store>, entry: &'l RouteEntry, account: &Account) -> Look<'l> {
        let head = &self.session.head;
        let mut key = Vec::with_capacity(128);
        let route = &entry.config.name;
        Resource { route, host: head.host(), target: head.path_and_query() }.write(&mut key);
        let mut origin = Vec::new();
        write_origin(&mut origin, (self.listener.tls().is_some(), account.trusted), head);
        let is_known = account.identity.is_some() || self.peer.identity.is_some() || entry.guard.is_some();
        let has_credentials = is_known || head.get(b"authorization").is_some();
        Look { store, entry, key, origin, has_credentials }
    }

    /// What there is for the request, and whose turn it is.
    fn see(&self, look: &Look<'_>, waited: Waited) -> Seen {
        let head = &self.session.head;
        let is_head = head.method() == Method::Head;
        let caller = Caller { request: head, origin: &look.origin, has_credentials: look.has_credentials };
        let (stale, why) = match look.store.find(&look.key, &caller, clock::unix_ms()) {
            Found::Stored(stored, Use::Fresh(left_ms)) => {
                return Seen::Answer(stored, CacheStatus::Hit(left_ms / 1000));
            }
            Found::Stored(stored, Use::WhileRevalidate) if is_head => {
                return Seen::Answer(stored, CacheStatus::Stale);
            }
            Found::Stored(stored, Use::WhileRevalidate) => return Seen::AnswerAndAsk(stored),
            // What has just arrived is stale at once: each request asks for itself.
            Found::Stored(stored, Use::Validated) if waited == Waited::ForResponse && !is_head => {
                return Seen::Go(Errand::Fill(Box::new(look.fill(Some(stored)))));
            }
            Found::Stored(stored, Use::Validated) => (Some(stored), "stale"),
            Found::Passed => return Seen::Go(Errand::Fill(Box::new(look.fill(None)))),
            Found::Nothing { has_others } => (None, if has_others { "vary-miss" } else { "uri-miss" }),
        };
        // A part is not kept, and a response without a body neither.
        if is_head || (stale.is_none() && head.get(b"range").is_some()) {
            return Seen::Go(Errand::Bypass(why));
        }
        match look.store.turn(&look.key, waited == Waited::TooLong) {
            Turn::First(ticket) => {
                let purpose = Purpose { stale, why, ..look.purpose() };
                Seen::Go(Errand::Fill(Box::new(look.fill_for(Some(ticket), purpose))))
            }
            Turn::Later(waiting) => Seen::Wait(waiting, stale),
        }
    }

    /// Responds as the request that this one has waited for; `None` if nobody knows how.
    async fn share_failure(
        &mut self,
        (why, stale): (u16, Option<Arc<Stored>>),
        look: &Look<'_>,
        account: &Account,
        transfer: &Transfer,
    ) -> Option<Next> {
        let most_ms = look.store.config().stale_on_failure_ms;
        let now_ms = clock::unix_ms();
        if let Some(stored) = stale.filter(|stored| stored.replaces_failure(now_ms, most_ms)) {
            let how = (transfer, Progress::default());
            return Some(self.send_stored(&stored, CacheStatus::Stale, look.entry, account, how).await);
        }
        let reason = Reason::ALL.get(usize::from(why))?;
        Some(self.fail(account, Progress::default(), *reason, transfer).await)
    }

    /// Asks the application behind the client's back whether a response has changed, unless somebody does already.
    fn ask_behind(&self, look: &Look<'_>, stored: &Arc<Stored>, account: &Account) {
        let Turn::First(ticket) = look.store.turn(&look.key, false) else { return };
        let stale = Some(Arc::clone(stored));
        let purpose = Purpose { stale, is_detached: true, why: "stale", ..look.purpose() };
        let fill = look.fill_for(Some(ticket), purpose);
        let stream = Stream::Channel(Rc::new(Sink));
        let (worker, listener) = (Rc::clone(&self.worker), Arc::clone(&self.listener));
        let mut behind = Self::bare(worker, listener, stream, self.peer.on_stream());
        behind.session.head = self.session.head.clone();
        behind.session.exchanges = 1;
        let account = account.behind();
        tokio::task::spawn_local(async move { Box::pin(behind.ask(account, fill)).await });
    }
}

impl Look<'_> {
    fn purpose(&self) -> Purpose {
        Purpose {
            stale: None,
            has_credentials: self.has_credentials,
            drops_encoding: self.entry.config.compress.is_some(),
            is_detached: false,
            why: "miss",
        }
    }

    /// A request for which nobody waits.
    fn fill(&self, stale: Option<Arc<Stored>>) -> Fill {
        let why = if stale.is_some() { "stale" } else { "miss" };
        self.fill_for(None, Purpose { stale, why, ..self.purpose() })
    }

    fn fill_for(&self, ticket: Option<Ticket>, purpose: Purpose) -> Fill {
        Fill::new(self.store, (&self.key, &self.origin), ticket, purpose)
    }
}
