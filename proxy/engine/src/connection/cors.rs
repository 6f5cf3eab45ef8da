//! Answers browsers that ask before they let a script of another site send a request.

use sluice_core::error::Reason;
use sluice_core::router::RouteMatch;

use super::account::Account;
use super::{Connection, Next};
use crate::body::Transfer;
use crate::response::Local;
use crate::snapshot::Snapshot;

impl Connection {
    /// Answers a preflight for a route with `cors`; `None` for all other requests. It has no credentials, so it comes
    /// before the route asks for any.
    pub(super) async fn preflight(
        &mut self,
        snapshot: &Snapshot,
        account: &mut Account,
        transfer: &mut Transfer,
    ) -> Option<Next> {
        let head = &self.session.head;
        if head.method_bytes() != b"OPTIONS" {
            return None;
        }
        let (origin, method) = head.get(b"origin").zip(head.get(b"access-control-request-method"))?;
        let RouteMatch::Route(index) = self.route_for(account, method) else { return None };
        let entry = &snapshot.routes[index];
        let cors = entry.cors.as_ref()?;
        let fields = cors.preflight(origin, head.get(b"access-control-request-headers").unwrap_or_default());
        account.route = u32::try_from(index).ok();
        if entry.gate.as_ref().is_some_and(|gate| !gate.lets_through(&account.client)) {
            return Some(self.deny(account, Reason::AccessDenied, transfer).await);
        }
        let local = Local::fixed(204, "", "").with_fields(fields).complete();
        Some(self.answer_locally(account, &local, None, transfer).await)
    }
}
