//! One exchange, from a parsed head to what follows it: check, route, then respond or forward.

use std::future::{Future, poll_fn};
use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;
use std::time::Duration;

use sluice_config::{Action, Balance, HashKey, Variable};
use sluice_core::cluster::{Cluster, hash_key};
use sluice_core::error::Reason;
use sluice_core::router::{Query, RouteMatch};
use sluice_http::{Expect, FieldKind, Framing, Method, RequestHead, is_same_name, request_framing};

use sluice_net::buffers::SMALL_BYTES;
use sluice_net::stream::Stream;

use super::account::Account;
use super::{Connection, Next, head};
use crate::body::Transfer;
use crate::cache::CachePart;
use crate::debug::{self, DebugRequest};
use crate::exchange::{Policy, RequestContext, client_gone, request_transfer};
use crate::progress::Progress;
use crate::response::Local;
use crate::snapshot::{RouteEntry, Snapshot, Target};
use sluice_core::http_challenges::CHALLENGE_TYPE;

/// How often it is checked whether a client is still there whose body is not read yet.
const BROKEN_CHECK: Duration = Duration::from_millis(250);

impl Connection {
    /// Runs the exchange whose head was just received.
    pub(super) async fn exchange(&mut self) -> Next {
        let worker = Rc::clone(&self.worker);
        let mut account = Account::new(&worker, self.peer.address, &self.session.head);
        account.trace = self.begin_trace(&account);
        let snapshot = &account.snapshot.clone();
        account.debug = debug::asked(snapshot.debug.as_ref(), &self.session.head);
        let framing = match self.check() {
            Ok(framing) => framing,
            Err(reason) => return self.reject(&account, reason).await,
        };
        let mut transfer = request_transfer(framing, self.limits());
        if !transfer.is_done() {
            // The part of the body that has arrived is forwarded together with the head.
            self.io.reader.peek(SMALL_BYTES);
        }
        if let Some(authorization) = worker.challenges.answer(&self.session.head) {
            let local = Local::fixed(200, &authorization, CHALLENGE_TYPE);
            return self.answer_locally(&account, &local, None, &mut transfer).await;
        }
        if let Some(reason) = self.denial(&account, self.session.head.host_name()) {
            return self.deny(&account, reason, &mut transfer).await;
        }
        if let Some(redirect) = self.listener.config.redirect_to_https
            && !self.came_by_https(&account)
        {
            return self.send_to_https(&account, redirect.port, &mut transfer).await;
        }
        if snapshot.has_cors
            && let Some(next) = self.preflight(snapshot, &mut account, &mut transfer).await
        {
            return next;
        }
        match self.route(&account) {
            RouteMatch::Route(index) => {
                let entry = &snapshot.routes[index];
                account.route = u32::try_from(index).ok();
                if entry.gate.as_ref().is_some_and(|gate| !gate.lets_through(&account.client)) {
                    return self.deny(&account, Reason::AccessDenied, &mut transfer).await;
                }
                // Boxed, so that other exchanges do not carry its memory.
                if !entry.limiters.is_empty()
                    && let Some(next) = Box::pin(self.pace(entry, &account, &mut transfer)).await
                {
                    return next;
                }
                if let Some(guard) = &entry.guard
                    && let Break(next) = Box::pin(self.authenticate(guard, &mut account, &mut transfer)).await
                {
                    return next;
                }
                if let Some(rewrite) = &entry.rewrite {
                    let (path, query) = self.session.head.split_target();
                    if path != b"*" && rewrite.apply(path, query).is_none() {
                        return self.reject(&account, Reason::BadRequest).await;
                    }
                }
                if let Some(files) = &entry.files
                    && let Some(next) = self.serve_file(files, entry, &account, &mut transfer).await
                {
                    return next;
                }
                match &entry.target {
                    Target::Cluster(cluster) => {
                        let to = (entry, cluster);
                        let errand = match &entry.cache {
                            None => None,
                            Some(cache) => {
                                match Box::pin(self.look_in_cache(cache, entry, &account, &transfer)).await {
                                    Break(next) => return next,
                                    Continue(errand) => Some(errand),
                                }
                            }
                        };
                        self.ask_cluster(&worker, to, &account, &mut transfer, errand.as_ref()).await
                    }
                    Target::Service(_) => self.through_service(&worker, &mut account, &mut transfer).await,
                    Target::Local => {
                        let rendered = entry.templates.as_ref();
                        let rendered =
                            rendered.map(|templates| Box::new(self.render(templates, entry, &account)));
                        let edits = rendered
                            .as_deref()
                            .map_or(entry.response_edits.as_ref(), |edits| Some(&edits.response));
                        let local = self.local_answer(entry, &account).edited(edits);
                        self.answer_locally(&account, &local, local.failure(), &mut transfer).await
                    }
                }
            }
            RouteMatch::MethodNotAllowed(allowed) => {
                let allowed = (&b"Allow"[..], allowed.join(", ").into_bytes());
                let local = Local::reason(Reason::MethodNotAllowed).with_fields([allowed]);
                self.answer_locally(&account, &local, Some(Reason::MethodNotAllowed), &mut transfer).await
            }
            RouteMatch::NoRoute => self.no_route(&account, &mut transfer).await,
        }
    }

    /// The route of the request.
    pub(super) fn route(&self, account: &Account) -> RouteMatch {
        self.route_for(account, self.session.head.method_bytes())
    }

    /// The route of the same request with this method.
    pub(super) fn route_for(&self, account: &Account, method: &[u8]) -> RouteMatch {
        let head = &self.session.head;
        let (path, parameters) = head.split_target();
        let has_field = |name: &[u8], fits: &dyn Fn(&[u8]) -> bool| {
            let mut fields = head.fields().filter(|field| is_same_name(field.name, name));
            self.is_believed(name, account) && fields.any(|field| fits(field.value))
        };
        account.snapshot.router.find(&Query {
            listener: &self.listener.config.name,
            host: head.host_name(),
            path,
            parameters,
            client: account.client,
            method,
            has_field: &has_field,
        })
    }

    /// Whether a field of this name means anything: the application gets no other one from this client.
    pub(super) fn is_believed(&self, name: &[u8], account: &Account) -> bool {
        FieldKind::of(name).is_believed(account.trusted, self.peer.identity.is_some())
            && !account.snapshot.is_of_identity(name)
    }

    pub(super) async fn no_route(&mut self, account: &Account, transfer: &mut Transfer) -> Next {
        self.answer_locally(account, &Local::reason(Reason::NoRoute), Some(Reason::NoRoute), transfer).await
    }

    /// Why the client of a request, or of a tunnel, to this host is refused: it is banned, or `access` does not let it
    /// through.
    pub(super) fn denial(&self, account: &Account, host: &[u8]) -> Option<Reason> {
        if self.is_banned(account) {
            return Some(Reason::Banned);
        }
        let gates = account.snapshot.gates.as_ref()?;
        let head = &self.session.head;
        // A tunnel has no request.
        let path = (!head.method_bytes().is_empty()).then(|| head.path());
        let passes = gates.let_through(&self.listener.config.name, host, path, &account.client);
        (!passes).then_some(Reason::AccessDenied)
    }

    pub(super) async fn deny(&mut self, account: &Account, reason: Reason, transfer: &mut Transfer) -> Next {
        if reason == Reason::Banned {
            return self.reject(account, reason).await;
        }
        self.answer_locally(account, &Local::reason(reason), Some(reason), transfer).await
    }

    /// The response of a route without a cluster.
    fn local_answer<'a>(&self, entry: &'a RouteEntry, account: &Account) -> Local<'a> {
        match (&entry.config.action, &entry.template) {
            (Action::Redirect { status, .. }, Some(location)) => {
                let value = |variable: &Variable| self.value(variable, Some(entry), account);
                Local::redirect(*status, location, &value).unwrap_or_else(Local::reason)
            }
            (Action::Respond { status, content_type, is_template: true, .. }, Some(template)) => {
                let body = self.body_of(template, content_type, entry, account);
                Local::fixed(*status, "", content_type).with_body(body)
            }
            (Action::Respond { status, body, content_type, .. }, _) => {
                Local::fixed(*status, body, content_type)
            }
            (Action::Files, _) => Local::reason(Reason::NoFile),
            // A route to a cluster is not local; validation ensures that the cluster exists.
            (Action::Cluster(_) | Action::Redirect { .. }, _) => Local::reason(Reason::NoEndpoint),
        }
    }

    /// Waits for something before the request goes anywhere; `None` if the client disconnects. While a body is still to
    /// come, the client is not read: its bytes would accumulate here.
    pub(super) async fn unless_gone<T>(
        &mut self,
        awaited: impl Future<Output = T>,
        transfer: &Transfer,
    ) -> Option<T> {
        let half_close = Duration::from_millis(self.limits().half_close_timeout_ms);
        if !transfer.is_done() {
            return tokio::select! {
                biased;
                outcome = awaited => Some(outcome),
                () = broken(self.io.reader.stream()) => None,
            };
        }
        tokio::select! {
            biased;
            outcome = awaited => Some(outcome),
            () = client_gone(&self.io.deadline, &mut self.io.reader, half_close) => None,
        }
    }

    /// Ends the exchange of a client that has disconnected.
    pub(super) fn leave(&self, account: &Account) -> Next {
        let progress = Progress { status: 499, ..Progress::default() };
        self.record(account, &progress, Some(Reason::ClientGone));
        Next::Abort { reset: true }
    }

    /// Whether a proxy in front reports that the client uses https: a redirect to https would then loop.
    pub(super) fn came_by_https(&self, account: &Account) -> bool {
        account.trusted
            && self
                .session
                .head
                .field(FieldKind::XForwardedProto)
                .is_some_and(|proto| proto.eq_ignore_ascii_case(b"https"))
    }

    async fn send_to_https(&mut self, account: &Account, port: u16, transfer: &mut Transfer) -> Next {
        match Local::to_https(port, &self.session.head) {
            Some(local) => self.answer_locally(account, &local, None, transfer).await,
            None => self.reject(account, Reason::BadHost).await,
        }
    }

    /// Checks that depend only on the head.
    fn check(&self) -> Result<Framing, Reason> {
        let framing = request_framing(&self.session.head).map_err(head::reason)?;
        if self.session.head.method() == Method::Connect {
            return Err(Reason::NotImplemented);
        }
        // The client was admitted with the certificate for the host of its handshake.
        if self.peer.identity.as_ref().is_some_and(|identity| !identity.is_for(self.session.head.host_name()))
        {
            return Err(Reason::MisdirectedRequest);
        }
        if self.session.head.expect() == Expect::Failed {
            return Err(Reason::ExpectationFailed);
        }
        match framing {
            Framing::Length(length) if length > self.limits().body_bytes_max => Err(Reason::BodyTooLarge),
            framing => Ok(framing),
        }
    }

    /// Whether the client wants, and may have, another exchange on this connection.
    pub(super) fn may_continue(&self) -> bool {
        self.session.head.keep_alive()
            && !self.is_ending()
            && self.session.exchanges < self.limits().requests_per_connection_max
    }

    /// Closes after a response. A client that expected to continue may already be sending.
    pub(super) fn last_answer(&self, transfer: &Transfer) -> Next {
        Next::Close { linger: !transfer.is_done() || self.session.head.keep_alive() }
    }

    /// Whether the connection may continue after a response that did not wait for the request's body.
    pub(super) fn continues_after(&self, transfer: &Transfer) -> bool {
        let expects = self.session.head.expect() == Expect::Continue;
        let drainable = transfer
            .remaining()
            .is_some_and(|bytes| bytes <= self.limits().drain_bytes_max && (bytes == 0 || !expects));
        self.may_continue() && drainable
    }

    /// Responds without an origin, and keeps the connection if the request's body is small enough to read.
    pub(super) async fn answer_locally(
        &mut self,
        account: &Account,
        local: &Local<'_>,
        reason: Option<Reason>,
        transfer: &mut Transfer,
    ) -> Next {
        let continues = self.continues_after(transfer);
        let keep_alive = self.answer_and_record(account, local, continues, reason).await;
        if keep_alive && self.drain_body(transfer).await {
            return Next::KeepAlive;
        }
        self.last_answer(transfer)
    }
}

pub(super) fn policy<'a>(
    snapshot: &'a Snapshot,
    entry: &'a RouteEntry,
    cluster: &'a std::sync::Arc<Cluster>,
    account: &Account,
    head: &RequestHead,
) -> Policy<'a> {
    let route = &entry.config;
    let config = &cluster.config;
    Policy {
        cluster,
        retry: route.retry.unwrap_or(config.retry),
        response_timeout_ms: route.response_timeout_ms.unwrap_or(config.response_timeout_ms),
        body_idle_timeout_ms: route.body_idle_timeout_ms.unwrap_or(config.body_idle_timeout_ms),
        request_edits: entry.request_edits.as_ref(),
        response_edits: entry.response_edits.as_ref(),
        replaced: &entry.replaced,
        handoff: entry.handoff.as_deref(),
        compress: entry.encoding(snapshot),
        cache: CachePart::Off,
        via: snapshot.config.via,
        // Debug information cannot be added to a direct return.
        direct_return: entry.direct_return && account.debug != DebugRequest::Trusted,
        buffering: route.buffering,
        buffers: &snapshot.config.buffers,
        request: RequestContext {
            client: account.client,
            hash: hash(&config.balance, account, head),
            debug: account.facts(snapshot),
            stamp: None,
            request_id: snapshot.config.response_request_id.then(|| Rc::clone(&account.request_id)),
            logged: &[],
            entered: None,
        },
    }
}

/// The key of a hashing balancer; a request without one goes to any endpoint.
fn hash(balance: &Balance, account: &Account, head: &RequestHead) -> Option<u64> {
    let Balance::Hash(key) = balance else {
        return None;
    };
    match key {
        HashKey::ClientAddress => Some(hash_key(account.client.to_string().as_bytes())),
        HashKey::Header(name) => head.get(name.as_bytes()).map(hash_key),
        HashKey::Cookie(name) => cookie(head, name.as_bytes()).map(hash_key),
    }
}

/// Resolves when a client whose body is still to come has reset its connection. One that has only ended it may have
/// sent all of the body before.
async fn broken(stream: &Stream) {
    while !stream.is_broken() {
        let broken = poll_fn(|cx| stream.poll_broken(cx));
        if tokio::time::timeout(BROKEN_CHECK, broken).await.is_ok() {
            return;
        }
    }
}

/// The value of the first cookie of this name (RFC 6265 4.2.1); a client may send several Cookie fields.
pub(super) fn cookie<'a>(head: &'a RequestHead, name: &[u8]) -> Option<&'a [u8]> {
    let fields = head.fields().filter(|field| field.name.eq_ignore_ascii_case(b"cookie"));
    fields.flat_map(|field| cookies(field.value, name)).next()
}

/// The values of all cookies of this name in a Cookie field.
pub(super) fn cookies<'a>(field: &'a [u8], name: &[u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
    let name = name.to_vec();
    field.split(|byte| *byte == b';').filter_map(move |pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        // Some frameworks trim the name.
        (pair[..equals].trim_ascii() == name).then(|| pair[equals + 1..].trim_ascii())
    })
}
