//! An exchange of a deployed service: carries out the service's decision.

use std::sync::Arc;
use std::time::Duration;

use sluice_core::clock;
use sluice_core::error::Reason;
use sluice_core::router::RouteMatch;
use sluice_core::service::entry::{Choice, Forward, RequestView, ServiceEntry, writer_cookie};
use sluice_core::service::slot::Entered;
use sluice_http::{CookieScope, FieldEdits, FieldKind, RequestHead};

use super::account::Account;
use super::request::policy;
use super::{Connection, Next};
use crate::body::Transfer;
use crate::cache::CachePart;
use crate::exchange::{Policy, RequestContext, Stamp};
use crate::response::Local;
use crate::snapshot::{RouteEntry, Target};
use crate::worker::Worker;

/// Names the target to the application.
const TARGET_FIELD: &str = "X-Kamal-Target";
/// A response field with which the application declares that its action was not a write.
const AFFINITY_FIELD: &[u8] = b"x-writer-affinity";

/// How the wait for the end of a pause has ended.
enum PauseOutcome {
    Over,
    TooLong,
    ClientGone,
}

impl Connection {
    /// Serves a request whose route leads to a service. It is routed again whenever the basis of its routing is
    /// outdated: after a pause, and if a deploy has just replaced the targets.
    pub(super) async fn through_service(
        &mut self,
        worker: &Worker,
        account: &mut Account,
        transfer: &mut Transfer,
    ) -> Next {
        loop {
            let snapshot = account.snapshot.clone();
            // A reload during a pause may have changed it.
            if let Some(reason) = self.denial(account, self.session.head.host_name()) {
                return self.deny(account, reason, transfer).await;
            }
            let RouteMatch::Route(index) = self.route(account) else {
                return self.no_route(account, transfer).await;
            };
            let entry = &snapshot.routes[index];
            account.route = u32::try_from(index).ok();
            let Target::Service(service) = &entry.target else {
                // The service was removed in the meantime, and the file's routes now take its requests.
                return self.no_route(account, transfer).await;
            };
            self.session.service = Some(Arc::clone(service));
            let is_secure = self.listener.config.tls.is_some() || self.came_by_https(account);
            let choice = choose(service, &self.session.head, is_secure);
            let forward = match choice {
                Choice::Forward(forward) => forward,
                Choice::Wait(patience) => match self.held(service, patience, transfer).await {
                    PauseOutcome::Over => {
                        account.snapshot = worker.snapshot();
                        continue;
                    }
                    PauseOutcome::TooLong => {
                        let reason = Reason::PauseTimeout;
                        let local = Local::reason(reason);
                        return self.answer_locally(account, &local, Some(reason), transfer).await;
                    }
                    PauseOutcome::ClientGone => return self.leave(account),
                },
                other => return self.answer_choice(&other, account, transfer).await,
            };
            let Some(entered) = forward.slot.enter(&service.gate) else {
                account.snapshot = worker.snapshot();
                continue;
            };
            account.chosen = Some(Arc::clone(forward.cluster));
            account.trusted |= service.target_options.forward_headers;
            let mut edits = Edits::new(service, &forward, &self.session.head, account);
            edits.scope_cookies(service, entry, &self.session.head);
            let policy = policy(&snapshot, entry, forward.cluster, account, &self.session.head);
            let policy = edits.apply(policy, service, &entered);
            return self.forward(worker, entry, &policy, account, transfer).await;
        }
    }

    /// Waits for the end of a pause, unless the client disconnects.
    async fn held(
        &mut self,
        service: &ServiceEntry,
        patience: Duration,
        transfer: &Transfer,
    ) -> PauseOutcome {
        match self.unless_gone(service.gate.opened(patience), transfer).await {
            Some(true) => PauseOutcome::Over,
            Some(false) => PauseOutcome::TooLong,
            None => PauseOutcome::ClientGone,
        }
    }

    async fn answer_choice(
        &mut self,
        choice: &Choice<'_>,
        account: &Account,
        transfer: &mut Transfer,
    ) -> Next {
        match choice {
            Choice::Redirect(location) => {
                let local = Local::found_at(301, location.clone());
                self.answer_locally(account, &local, None, transfer).await
            }
            Choice::Stopped(message) => {
                let reason = Reason::ServiceStopped;
                let local = Local::reason(reason).saying(message);
                self.answer_locally(account, &local, Some(reason), transfer).await
            }
            Choice::Well | Choice::Wait(_) | Choice::Forward(_) => {
                let local = Local::fixed(200, "", "text/plain; charset=utf-8");
                self.answer_locally(account, &local, None, transfer).await
            }
        }
    }
}

fn choose<'a>(service: &'a ServiceEntry, head: &RequestHead, is_secure: bool) -> Choice<'a> {
    let cookies: Vec<&[u8]> =
        head.fields().filter(|field| field.kind == FieldKind::Cookie).map(|field| field.value).collect();
    service.choose(&RequestView {
        method: head.method_bytes(),
        host: head.host_name(),
        path: head.path(),
        target: head.path_and_query(),
        cookies: &cookies,
        is_secure,
        websocket: head.upgrade().is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket")),
        unix_ms: clock::unix_ms(),
        now_ms: clock::now_ms(),
    })
}

/// The field that names the target to the application, after the targets that the request has already passed.
fn stamp(service: &ServiceEntry, head: &RequestHead) -> Stamp {
    let mut before = Vec::new();
    if service.target_options.forward_headers {
        let told = head.fields().filter(|field| field.name.eq_ignore_ascii_case(TARGET_FIELD.as_bytes()));
        for field in told {
            before.extend_from_slice(field.value);
            before.extend_from_slice(b", ");
        }
    }
    Stamp { field: TARGET_FIELD, before }
}

/// A service's changes to the heads of one exchange.
struct Edits {
    request: FieldEdits,
    response: FieldEdits,
    stamp: Stamp,
}

impl Edits {
    fn new(service: &ServiceEntry, forward: &Forward<'_>, head: &RequestHead, account: &Account) -> Self {
        let mut request = FieldEdits::default();
        request.remove.push(TARGET_FIELD.to_ascii_lowercase().into_bytes());
        // An application believes them whichever route leads to it.
        request.remove.extend(account.snapshot.fields_of_identity().map(|name| name.as_bytes().to_vec()));
        let field = service.options.client_ip_header.as_bytes();
        if !field.is_empty()
            && account.trusted
            && let Some(named) = head.get(&field.to_ascii_lowercase())
        {
            // As if X-Forwarded-For had been received with it.
            let value = [named, b", ", account.client.to_string().as_bytes()].concat();
            request.set.push((b"X-Forwarded-For".to_vec(), value));
        }
        let mut response = FieldEdits::default();
        if let Some(timeout) = forward.affinity {
            response.remove.push(AFFINITY_FIELD.to_vec());
            response
                .add
                .push((b"Set-Cookie".to_vec(), writer_cookie(clock::unix_ms(), timeout).into_bytes()));
            response.unless = Some((AFFINITY_FIELD.to_vec(), b"false".to_vec()));
        }
        Self { request, response, stamp: stamp(service, head) }
    }

    /// Prepends the prefix that the route strips to the paths of cookies, if the service requests it.
    fn scope_cookies(&mut self, service: &ServiceEntry, entry: &RouteEntry, head: &RequestHead) {
        if service.target_options.scope_cookie_paths && entry.config.strip_prefix {
            let prefix = entry.config.path_prefix.as_bytes();
            self.response.cookies = Some(CookieScope::new(prefix, head.host_name()));
        }
    }

    fn apply<'a>(
        &'a self,
        policy: Policy<'a>,
        service: &'a ServiceEntry,
        entered: &'a Entered,
    ) -> Policy<'a> {
        Policy {
            cache: CachePart::Off,
            request_edits: Some(&self.request),
            response_edits: (!self.response.is_empty()).then_some(&self.response).or(policy.response_edits),
            replaced: &[],
            direct_return: policy.direct_return
                && self.response.is_empty()
                && service.logged.response.is_empty(),
            request: RequestContext {
                stamp: Some(&self.stamp),
                logged: &service.logged.response,
                entered: Some(entered),
                ..policy.request
            },
            ..policy
        }
    }
}
