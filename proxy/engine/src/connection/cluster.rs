//! Requests to the cluster of a route: with what its cache wants of them, and those that nobody waits for.

use std::rc::Rc;
use std::sync::Arc;

use sluice_core::cluster::Cluster;
use sluice_core::error::{Reason, Side};
use sluice_http::{FieldEdits, Framing};

use super::account::Account;
use super::affinity::Affinity;
use super::cached::Errand;
use super::request::policy;
use super::{Connection, Next};
use crate::body::Transfer;
use crate::cache::{CachePart, CacheStatus, Fill};
use crate::exchange::{Policy, request_transfer};
use crate::progress::Progress;
use crate::snapshot::{RouteEntry, Target};
use crate::worker::Worker;

impl Connection {
    /// Forwards the request to a cluster, with the changes of the route, and those of its cache.
    #[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end at different times")]
    pub(super) async fn ask_cluster(
        &mut self,
        worker: &Worker,
        (entry, cluster): (&RouteEntry, &Arc<Cluster>),
        account: &Account,
        transfer: &mut Transfer,
        errand: Option<&Errand>,
    ) -> Next {
        let mut policy = policy(&account.snapshot, entry, cluster, account, &self.session.head);
        policy.cache = part(errand);
        let affinity = self.affinity(cluster, account);
        let mut set_cookie = None;
        if let Some(Affinity { hash, set_cookie: value }) = affinity {
            policy.request.hash = Some(hash);
            policy.direct_return &= value.is_none();
            set_cookie = value;
        }
        let own = self.own_edits(entry, account, set_cookie);
        if let Some(edits) = &own {
            policy.request_edits = Some(&edits.request);
            policy.response_edits = Some(&edits.response).filter(|edits| !edits.is_empty());
        }
        let of_cache: Option<FieldEdits> =
            policy.cache.fill().and_then(|fill| fill.edits(policy.request_edits));
        policy.request_edits = of_cache.as_ref().or(policy.request_edits);
        self.forward(worker, entry, &policy, account, transfer).await
    }

    /// Asks the application on behalf of the cache alone.
    pub(super) async fn ask(&mut self, account: Account, fill: Fill) {
        let (worker, snapshot) = (Rc::clone(&self.worker), account.snapshot.clone());
        let Some(entry) = account.route.and_then(|index| snapshot.routes.get(index as usize)) else { return };
        let Target::Cluster(cluster) = &entry.target else { return };
        let mut transfer = request_transfer(Framing::None, self.limits());
        let errand = Errand::Fill(Box::new(fill));
        // Nobody is there to get an answer.
        let _ = self.ask_cluster(&worker, (entry, cluster), &account, &mut transfer, Some(&errand)).await;
    }

    /// Ends a request whose response could have been kept, and that has failed: others wait for it, and a stale
    /// response may do. `None` if there is none.
    #[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end here")]
    pub(super) async fn fail_fill(
        &mut self,
        policy: &Policy<'_>,
        reason: Reason,
        entry: &RouteEntry,
        account: &Account,
        (transfer, progress): (&Transfer, &mut Progress),
    ) -> Option<Next> {
        let fill = policy.cache.fill().filter(|_| reason.side() != Side::Downstream)?;
        fill.fail(reason);
        let stale = fill.instead().filter(|_| !progress.is_answered() && !fill.is_detached())?;
        let how = (transfer, std::mem::take(progress));
        Some(Box::pin(self.send_stored(stale, (CacheStatus::Stale, None), entry, account, how)).await)
    }
}

fn part(errand: Option<&Errand>) -> CachePart<'_> {
    match errand {
        None => CachePart::Off,
        Some(Errand::Fill(fill)) => CachePart::Fill(fill),
        Some(Errand::Bypass(why)) => CachePart::Bypassed(why),
    }
}
