//! An exchange's position in a trace, seen from its connection: the start of the trace, and the hand-over at the end.

use std::time::{Duration, Instant};

use sluice_core::record::ExchangeRecord;
use sluice_core::spans::{Record, Trace, Upstream};

use super::Connection;
use super::account::Account;
use super::forward::sent_target;
use crate::debug::{self, DebugRequest};
use crate::progress::Progress;
use crate::snapshot::RouteEntry;

/// Fields that a client may send and the origin must not see, ordered so that [`dropped`] is a slice of them.
const DROPPED: [&[u8]; 3] = [debug::FIELD, b"traceparent", b"tracestate"];

/// Names of the fields that are not forwarded: the token; the field that sluice itself sends; and, if a trace starts
/// here, a tracestate that belongs to another trace.
pub(super) fn dropped(account: &Account) -> &'static [&'static [u8]] {
    let first = usize::from(account.debug == DebugRequest::Disabled);
    let of_trace = account.trace.map_or(0, |trace| 1 + usize::from(trace.is_new()));
    &DROPPED[first..1 + of_trace]
}

impl Connection {
    /// The position in a trace of the exchange whose head was just received, if exchanges are traced.
    pub(super) fn begin_trace(&self, account: &Account) -> Option<Trace> {
        self.worker.tracer()?;
        let ratio = account.snapshot.config.tracing.as_ref()?.sample_ratio;
        Some(
            self.worker
                .with_random(|random| Trace::begin(&self.session.head, account.trusted, ratio, random)),
        )
    }

    /// Hands over a finished exchange for its spans, if it is sampled.
    pub(super) fn hand_over(
        &self,
        account: &Account,
        progress: &Progress,
        record: &ExchangeRecord<'_>,
        route: Option<&RouteEntry>,
    ) {
        let Some((trace, tracer)) = account.trace.filter(Trace::is_sampled).zip(self.worker.tracer()) else {
            return;
        };
        let sent = progress.times.sent_at.zip(progress.endpoint.as_ref()).zip(route);
        tracer.offer(sent.is_some(), || {
            let upstream = sent.map(|((sent, endpoint), route)| Upstream {
                host: endpoint.host.clone(),
                address: endpoint.label.clone(),
                target: sent_target(route, &self.session.head).into_owned(),
                began: began(account, progress, sent),
                connect: progress.times.connect,
                first_byte: progress.times.first_byte_at.map(|first| first.saturating_duration_since(sent)),
                status: progress.is_answered().then_some(progress.status),
            });
            let config = route.map(|route| &route.config);
            let given = config.and_then(|config| config.path.as_deref().or(config.path_regex.as_deref()));
            let prefix = given.or(config.map(|config| config.path_prefix.as_str())).unwrap_or_default();
            Record::of(trace, &self.session.head, record, prefix, upstream)
        });
    }
}

/// When the last attempt started, relative to the start of the exchange; includes connecting.
fn began(account: &Account, progress: &Progress, sent: Instant) -> Duration {
    sent.saturating_duration_since(account.clock).saturating_sub(progress.times.connect.unwrap_or_default())
}
