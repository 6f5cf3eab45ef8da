//! Looks for the response of a route with a cache, and decides which request goes to the application for it.

use std::cell::Cell;
use std::ops::ControlFlow::{self, Break, Continue};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_cache::{
    Caller, Lookup, Outcome, Resource, ResponseWait, Store, StoredResponse, Ticket, Turn, Use,
};
use sluice_core::clock;
use sluice_core::error::Reason;
use sluice_http::Method;
use sluice_net::stream::Stream;
use tokio::time::{Instant, timeout, timeout_at};

use super::account::Account;
use super::hints::Hints;
use super::{Connection, Next};
use crate::body::Transfer;
use crate::cache::{CacheStatus, Fill, Purpose, Sink, is_plain_request, names_certificate, write_origin};
use crate::progress::Progress;
use crate::response::Local;
use crate::snapshot::{RouteEntry, Target};

/// How often a request looks again, after others have brought nothing for it.
const LOOKS_MAX: usize = 8;
/// The number of the reason why a request has waited too long.
const TIMEOUT: u16 = Reason::ResponseTimeout as u16;

/// How a request with a cache goes to its application.
pub(super) enum Errand {
    /// Its response may be kept.
    Fill(Box<Fill>),
    /// Without the cache; and why, as Cache-Status names it.
    Bypass(&'static str),
}

/// How long a client waits for a response at most, in milliseconds: as long as for one of the application.
pub(super) fn patience_ms(entry: &RouteEntry) -> u64 {
    let of_cluster = match &entry.target {
        Target::Cluster(cluster) => cluster.config.response_timeout_ms,
        Target::Service(_) | Target::Local => sluice_config::Cluster::default().response_timeout_ms,
    };
    entry.config.response_timeout_ms.unwrap_or(of_cluster)
}

/// What a request is to the cache.
pub(super) struct Look<'l> {
    pub(super) store: &'l Arc<Store>,
    pub(super) entry: &'l RouteEntry,
    key: Vec<u8>,
    origin: Vec<u8>,
    has_credentials: bool,
    /// When it came, in milliseconds since 1970.
    since_ms: u64,
    /// Whether the disk of the cache has been asked.
    has_loaded: Cell<bool>,
}

/// What a request has waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitReason {
    Never,
    /// A response that is stored now.
    ForResponse,
    /// Another request that takes long.
    TooLong,
}

/// What comes of one look.
enum LookOutcome {
    /// The client gets this response.
    Answer(Arc<StoredResponse>, CacheStatus),
    /// The same, and the application is asked whether it has changed.
    AnswerAndAsk(Arc<StoredResponse>),
    /// The request goes to the application.
    Go(Errand),
    /// It looks again once the disk has been read.
    Load,
    /// It waits for another one.
    Wait(ResponseWait, Option<Arc<StoredResponse>>),
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
        // From the first wait on: a hit needs no clock.
        let mut patience = None;
        let mut waited = WaitReason::Never;
        let mut looks = 0;
        let mut hints = Hints::Unsent;
        loop {
            let (mut wait, stale) = match self.see(&look, waited) {
                LookOutcome::Answer(stored, status) => {
                    let how = (transfer, Progress::default());
                    return Break(self.send_stored(&stored, (status, None), entry, account, how).await);
                }
                LookOutcome::AnswerAndAsk(stored) => {
                    self.ask_behind(&look, &stored, account);
                    let how = (transfer, Progress::default());
                    return Break(
                        self.send_stored(&stored, (CacheStatus::Stale, None), entry, account, how).await,
                    );
                }
                LookOutcome::Go(_) | LookOutcome::Wait(..) if store.wants_stored_only(&self.session.head) => {
                    let local = Local::status(504);
                    let keep_alive = self.answer_and_record(account, &local, self.may_continue(), None).await;
                    return Break(if keep_alive { Next::KeepAlive } else { self.last_answer(transfer) });
                }
                LookOutcome::Go(errand) => {
                    if let Errand::Fill(fill) = &errand {
                        self.send_hints(fill.stale(), &look, account, &mut hints).await;
                    }
                    return Continue(errand);
                }
                LookOutcome::Load => match self.unless_gone(look.load(), transfer).await {
                    Some(()) => continue,
                    None => return Break(self.leave(account)),
                },
                LookOutcome::Wait(wait, stale) => {
                    self.send_hints(stale.as_ref(), &look, account, &mut hints).await;
                    (wait, stale)
                }
            };
            let patience =
                *patience.get_or_insert_with(|| Instant::now() + Duration::from_millis(patience_ms(entry)));
            let until = patience.min(wait.until.into());
            let Some(outcome) = self.unless_gone(timeout_at(until, wait.outcome()), transfer).await else {
                return Break(self.leave(account));
            };
            waited = WaitReason::Never;
            match outcome {
                Ok(Outcome::Stored) => waited = WaitReason::ForResponse,
                Ok(Outcome::Abandoned) => {}
                // What made it so holds for this request as well.
                Ok(Outcome::OfCaller) if self.may_be_known() => {
                    return Continue(Errand::Fill(Box::new(look.fill(None))));
                }
                Ok(Outcome::OfCaller) => {}
                Ok(Outcome::Passed) => return Continue(Errand::Fill(Box::new(look.fill(None)))),
                Ok(Outcome::Failed(why)) => {
                    if let Some(next) = self.share_failure((why, stale), &look, account, transfer).await {
                        return Break(next);
                    }
                }
                Err(_) if Instant::now() >= patience => {
                    let why = (TIMEOUT, stale);
                    if let Some(next) = self.share_failure(why, &look, account, transfer).await {
                        return Break(next);
                    }
                }
                Err(_) => {
                    // The application takes long, and what there is will do.
                    if stale.as_ref().is_some_and(|stored| look.replaces_failure(stored)) {
                        let none = (u16::MAX, stale);
                        if let Some(next) = self.share_failure(none, &look, account, transfer).await {
                            return Break(next);
                        }
                    }
                    waited = WaitReason::TooLong;
                    continue;
                }
            }
            looks += 1;
            if looks == LOOKS_MAX {
                return Continue(Errand::Fill(Box::new(look.fill(None))));
            }
        }
    }

    /// Whether the response to this request may be for its client alone, because of its fields.
    fn may_be_known(&self) -> bool {
        let head = &self.session.head;
        [&b"cookie"[..], b"origin", b"cache-control"].iter().any(|name| head.get(name).is_some())
    }

    fn look<'l>(&self, store: &'l Arc<Store>, entry: &'l RouteEntry, account: &Account) -> Look<'l> {
        let head = &self.session.head;
        let mut key = Vec::with_capacity(128);
        let route = &entry.cache_scope;
        let host = if head.host().is_empty() { self.listener.authority.as_bytes() } else { head.host() };
        Resource { route, host, target: head.path_and_query() }.write(&mut key);
        let mut origin = Vec::new();
        write_origin(&mut origin, (self.listener.tls().is_some(), account.trusted), head);
        let is_known = account.identity.is_some()
            || self.peer.identity.is_some()
            || entry.guard.is_some()
            || (account.trusted && names_certificate(head));
        let has_credentials = is_known || head.get(b"authorization").is_some();
        Look {
            store,
            entry,
            key,
            origin,
            has_credentials,
            since_ms: clock::unix_ms(),
            has_loaded: Cell::new(false),
        }
    }

    fn caller<'c>(&'c self, look: &'c Look<'_>) -> Caller<'c> {
        let request = &self.session.head;
        Caller { request, origin: &look.origin, has_credentials: look.has_credentials }
    }

    /// What there is for the request, and whose turn it is.
    fn see(&self, look: &Look<'_>, waited: WaitReason) -> LookOutcome {
        let head = &self.session.head;
        let is_head = head.method() == Method::Head;
        let caller = self.caller(look);
        let find = || look.store.find(&look.key, &caller, clock::unix_ms());
        let (stale, signature, why) = match find() {
            Lookup::Stored(stored, Use::Fresh(left_ms)) => {
                return LookOutcome::Answer(stored, CacheStatus::Hit(left_ms / 1000));
            }
            Lookup::Stored(stored, Use::WhileRevalidate) if is_head => {
                return LookOutcome::Answer(stored, CacheStatus::Stale);
            }
            Lookup::Stored(stored, Use::WhileRevalidate) => return LookOutcome::AnswerAndAsk(stored),
            Lookup::Stored(stored, Use::Validated)
                if waited == WaitReason::ForResponse && stored.answers_wait(look.since_ms) =>
            {
                return LookOutcome::Answer(stored, CacheStatus::Hit(0));
            }
            // What has just arrived is for one use: each request asks for itself.
            Lookup::Stored(stored, Use::Validated) if waited == WaitReason::ForResponse && !is_head => {
                return LookOutcome::Go(Errand::Fill(Box::new(look.fill(Some(stored)))));
            }
            Lookup::Stored(stored, Use::Validated) => {
                let signature = stored.signature(&caller);
                (Some(stored), Some(signature), "stale")
            }
            Lookup::Passed => return LookOutcome::Go(Errand::Fill(Box::new(look.fill(None)))),
            Lookup::OnDisk if !look.has_loaded.get() => return LookOutcome::Load,
            Lookup::OnDisk => (None, None, "uri-miss"),
            Lookup::Nothing { signature } => {
                let why = if signature.is_some() { "vary-miss" } else { "uri-miss" };
                (None, signature, why)
            }
        };
        // A part is not kept, and a response without a body neither.
        if is_head || (stale.is_none() && head.get(b"range").is_some()) {
            return LookOutcome::Go(Errand::Bypass(why));
        }
        // What it brings is most likely for this client alone.
        if stale.is_none() && look.has_credentials {
            return LookOutcome::Go(Errand::Fill(Box::new(look.fill(None))));
        }
        let mut key = look.key.clone();
        key.extend(signature.into_iter().flat_map(|signature| [vec![0], signature].concat()));
        match look.store.turn(&key, waited == WaitReason::TooLong) {
            Turn::First(ticket) => {
                // Another worker may have stored it between the look and the turn.
                if let Lookup::Stored(stored, Use::Fresh(left_ms)) = find() {
                    ticket.settle(Outcome::Stored);
                    return LookOutcome::Answer(stored, CacheStatus::Hit(left_ms / 1000));
                }
                let purpose = Purpose { stale, why, ..look.purpose() };
                LookOutcome::Go(Errand::Fill(Box::new(look.fill_for(Some(ticket), purpose))))
            }
            Turn::Later(wait) => LookOutcome::Wait(wait, stale),
        }
    }

    /// Responds as the request that this one has waited for; `None` if nobody knows how.
    async fn share_failure(
        &mut self,
        (why, stale): (u16, Option<Arc<StoredResponse>>),
        look: &Look<'_>,
        account: &Account,
        transfer: &Transfer,
    ) -> Option<Next> {
        if let Some(stored) = stale.filter(|stored| look.replaces_failure(stored)) {
            let how = (transfer, Progress::default());
            return Some(
                self.send_stored(&stored, (CacheStatus::Stale, None), look.entry, account, how).await,
            );
        }
        let reason = Reason::ALL.get(usize::from(why))?;
        Some(self.fail(account, Progress::default(), *reason, transfer).await)
    }

    /// Asks the application behind the client's back whether a response has changed, unless somebody does already.
    fn ask_behind(&self, look: &Look<'_>, stored: &Arc<StoredResponse>, account: &Account) {
        let Some(behind_others) = look.store.behind() else { return };
        let caller = self.caller(look);
        let key = [&look.key[..], &[0], &stored.signature(&caller)].concat();
        let Turn::First(ticket) = look.store.turn(&key, false) else { return };
        let stale = Some(Arc::clone(stored));
        let purpose = Purpose { stale, is_detached: true, why: "stale", ..look.purpose() };
        let fill = look.fill_for(Some(ticket), purpose);
        let stream = Stream::Channel(Rc::new(Sink));
        let (worker, listener) = (Rc::clone(&self.worker), Arc::clone(&self.listener));
        let runners = Rc::clone(&self.runners);
        let mut behind = Self::bare(worker, runners, listener, stream, self.peer.on_stream());
        behind.session.head = self.session.head.clone();
        behind.session.exchanges = 1;
        let account = account.behind();
        tokio::task::spawn_local(async move {
            Box::pin(behind.ask(account, fill)).await;
            drop(behind_others);
        });
    }
}

impl Look<'_> {
    fn replaces_failure(&self, stored: &StoredResponse) -> bool {
        stored.replaces_failure(clock::unix_ms(), self.store.config().stale_on_failure_ms)
    }

    /// Has its response read from the disk of the cache, once for all that ask for it, if the disk is not too slow.
    async fn load(&self) {
        self.has_loaded.set(true);
        let key = [&b"\0disk\0"[..], &self.key].concat();
        match self.store.turn(&key, false) {
            Turn::First(ticket) => {
                if let Some(loading) = self.store.loading() {
                    let key = self.key.clone();
                    let most = Duration::from_millis(self.store.config().wait_max_ms);
                    let _ = timeout(
                        most,
                        tokio::task::spawn_blocking(move || loading.load(&key, clock::unix_ms())),
                    )
                    .await;
                }
                ticket.settle(Outcome::Stored);
            }
            Turn::Later(mut wait) => _ = timeout_at(wait.until.into(), wait.outcome()).await,
        }
    }

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
    fn fill(&self, stale: Option<Arc<StoredResponse>>) -> Fill {
        let why = if stale.is_some() { "stale" } else { "miss" };
        self.fill_for(None, Purpose { stale, why, ..self.purpose() })
    }

    fn fill_for(&self, ticket: Option<Ticket>, purpose: Purpose) -> Fill {
        Fill::new(self.store, (&self.key, &self.origin), ticket, purpose)
    }
}
