//! Finds out who sends a request before it goes anywhere; nobody passes without a clear yes.

use std::ops::ControlFlow::{self, Break, Continue};

use sluice_config::{CertificateAuth, ForwardAuth};
use sluice_core::auth::{Passwords, Users};
use sluice_core::error::Reason;
use sluice_http::{FieldEdits, FieldKind, FieldRef, is_same_name};

use super::account::Account;
use super::{Connection, Next};
use crate::authority::{AskError, Fields, Opinion};
use crate::body::Transfer;
use crate::guard::Guard;
use crate::response::Local;

/// Fields about the request that an authority gets, in lower case. Those of the client are not passed.
const ABOUT: [&[u8]; 6] = [
    b"x-forwarded-method",
    b"x-forwarded-proto",
    b"x-forwarded-host",
    b"x-forwarded-uri",
    b"x-forwarded-for",
    b"x-request-id",
];

/// Who sent a request.
#[derive(Clone)]
pub(super) struct Identity {
    /// The name of the user, if the guard knows it.
    pub(super) user: Option<String>,
    /// What the application gets to know of it, in place of what the client says.
    pub(super) edits: FieldEdits,
    /// Fields that the response gets in addition.
    pub(super) response: Fields,
}

impl Identity {
    /// Somebody with this name.
    fn named(user: String) -> Self {
        Self { user: Some(user), edits: FieldEdits::default(), response: Fields::new() }
    }

    /// Adds to the changes of a route what it says of the client. It has precedence.
    pub(super) fn complete(&self, edits: &mut FieldEdits) {
        edits.set.retain(|(name, _)| !self.edits.takes_out(name));
        edits.add.retain(|(name, _)| !self.edits.takes_out(name));
        edits.remove.extend(self.edits.remove.iter().cloned());
        edits.set.extend(self.edits.set.iter().cloned());
    }

    /// Whether it changes the request or the response.
    pub(super) fn has_edits(&self) -> bool {
        !self.edits.is_empty() || !self.response.is_empty()
    }
}

impl Connection {
    /// Lets the request pass, or breaks with what follows after a refusal.
    pub(super) async fn authenticate(
        &mut self,
        guard: &Guard,
        account: &mut Account,
        transfer: &mut Transfer,
    ) -> ControlFlow<Next> {
        match guard {
            Guard::Basic { users, passwords, challenge } => {
                self.ask_password(users, passwords, challenge, account, transfer).await
            }
            Guard::Forward { config, authority, room } => {
                let Ok(place) = room.try_acquire() else {
                    let reason = Reason::AuthBusy;
                    let local = Local::reason(reason);
                    return Break(self.answer_locally(account, &local, Some(reason), transfer).await);
                };
                let asked = authority.ask(config, self.question(account, &config.copy));
                let opinion = self.unless_gone(asked, transfer).await;
                // A client that is slow to take a refusal must not keep others from asking.
                drop(place);
                let Some(opinion) = opinion else { return Break(self.leave(account)) };
                self.heed(opinion.unwrap_or(Err(AskError::Failed)), config, account, transfer).await
            }
            Guard::Token { tokens, authority } => {
                self.ask_token(tokens, &**authority, account, transfer).await
            }
            Guard::Certificate(wanted) => self.ask_certificate(wanted, account, transfer).await,
            Guard::Closed => {
                let reason = Reason::AuthUnavailable;
                Break(self.answer_locally(account, &Local::reason(reason), Some(reason), transfer).await)
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what the guard has, and the parts of one exchange")]
    async fn ask_password(
        &mut self,
        users: &Users,
        passwords: &Passwords,
        challenge: &[u8],
        account: &mut Account,
        transfer: &mut Transfer,
    ) -> ControlFlow<Next> {
        let authorization = self.authorization();
        let checking = passwords.user_of(users, &authorization, account.client);
        let Some(checked) = self.unless_gone(checking, transfer).await else {
            return Break(self.leave(account));
        };
        let local = match checked {
            Ok(Some(user)) => {
                account.identity = Some(Box::new(Identity::named(user)));
                return Continue(());
            }
            Ok(None) => Local::reason(Reason::Unauthorized)
                .with_fields([(&b"WWW-Authenticate"[..], challenge.to_vec())]),
            Err(_) => Local::reason(Reason::AuthBusy),
        };
        let reason = local.failure();
        Break(self.answer_locally(account, &local, reason, transfer).await)
    }

    async fn ask_certificate(
        &mut self,
        wanted: &CertificateAuth,
        account: &mut Account,
        transfer: &mut Transfer,
    ) -> ControlFlow<Next> {
        let peer = self.peer.identity.as_ref().filter(|identity| identity.is_one_of(wanted));
        let Some(subject) = peer.map(|identity| identity.subject().unwrap_or_default()) else {
            let reason = Reason::CertificateRefused;
            return Break(self.answer_locally(account, &Local::reason(reason), Some(reason), transfer).await);
        };
        let user = String::from_utf8_lossy(subject).into_owned();
        account.identity = Some(Box::new(Identity::named(user)));
        Continue(())
    }

    /// The value of the only Authorization field; of several, the application might read another one.
    fn authorization(&self) -> Vec<u8> {
        let is_one = |field: &FieldRef<'_>| field.name.eq_ignore_ascii_case(b"authorization");
        let mut given = self.session.head.fields().filter(is_one).map(|field| field.value.to_vec());
        given.next().filter(|_| given.next().is_none()).unwrap_or_default()
    }

    /// Does what an authority says.
    async fn heed(
        &mut self,
        opinion: Result<Opinion, AskError>,
        config: &ForwardAuth,
        account: &mut Account,
        transfer: &mut Transfer,
    ) -> ControlFlow<Next> {
        let local = match opinion {
            Ok(Opinion::Allowed { request, response }) => {
                let remove = config.copy.iter().map(|name| name.clone().into_bytes()).collect();
                let edits = FieldEdits { remove, set: request, ..FieldEdits::default() };
                account.identity = Some(Box::new(Identity { user: None, edits, response }));
                return Continue(());
            }
            Ok(Opinion::Refused { status, fields, body }) => {
                let local = Local::passed_on(status, fields, body);
                return Break(
                    self.answer_locally(account, &local, Some(Reason::AuthRefused), transfer).await,
                );
            }
            Err(AskError::Timeout) => Local::reason(Reason::AuthTimeout),
            Err(AskError::Failed) => Local::reason(Reason::AuthFailed),
        };
        let reason = local.failure();
        Break(self.answer_locally(account, &local, reason, transfer).await)
    }

    /// The head of the request as an authority gets it: without what concerns only this connection, its body, or what
    /// the client has cached, and without anything that says who the client is or what it asks for, except what sluice
    /// says itself: the authority might believe it. `copied` are fields by which it tells the application.
    fn question(&self, account: &Account, copied: &[String]) -> Fields {
        let head = &self.session.head;
        let nominated: Vec<Vec<u8>> = head.nominated().collect();
        let passes = |field: &FieldRef<'_>| {
            let name = field.name.to_ascii_lowercase();
            !is_of_connection(field.kind)
                && field.kind.is_believed(false, self.peer.identity.is_some())
                && !account.snapshot.is_of_identity(&name)
                && !copied.iter().any(|copied| is_same_name(copied.as_bytes(), &name))
                && !nominated.contains(&name)
                && !ABOUT.contains(&&name[..])
                && name != b"range"
                && !name.starts_with(b"if-")
        };
        let passed = head.fields().filter(passes).map(|field| (field.name.to_vec(), field.value.to_vec()));
        let mut fields: Fields = passed.collect();
        let about = [
            head.method_bytes().to_vec(),
            self.scheme(account).to_vec(),
            head.host().to_vec(),
            head.path_and_query().to_vec(),
            account.client.to_string().into_bytes(),
            account.request_id.to_vec(),
        ];
        fields.extend(ABOUT.iter().map(|name| name.to_vec()).zip(about));
        fields
    }
}

/// Whether a field concerns only the connection with the client, or the body, or says what [`ABOUT`] says.
fn is_of_connection(kind: FieldKind) -> bool {
    use FieldKind::*;
    kind.is_protected() || matches!(kind, ProxyAuthorization | Expect | Forwarded)
}
