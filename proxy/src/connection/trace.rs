//! An exchange's place in a trace, seen from its connection: where it begins, and what is handed over at its end.

use std::time::Instant;

use super::Connection;
use super::account::Account;
use super::forward::sent_target;
use crate::debug::{self, Asked};
use crate::exchange::Progress;
use crate::record::ExchangeRecord;
use crate::spans::{Record, Trace, Upstream};

/// What the client may send and the origin is not to see, in an order in which [`dropped`] is a part of it.
const DROPPED: [&[u8]; 3] = [debug::FIELD, b"traceparent", b"tracestate"];

/// Names of the fields that end here: the token; what we say ourselves; and, where a trace begins here, a tracestate
/// that cannot be about it.
pub(super) fn dropped(account: &Account) -> &'static [&'static [u8]] {
    let first = usize::from(account.debug == Asked::Off);
    let of_trace = account.trace.map_or(0, |trace| 1 + usize::from(trace.is_new()));
    &DROPPED[first..1 + of_trace]
}

impl Connection {
    /// The place in a trace of the exchange whose head has just been received, if exchanges are traced.
    pub(super) fn begin_trace(&self, trusted: bool) -> Option<Trace> {
        let worker = &self.worker;
        worker.tracer()?;
        let ratio = worker.snapshot().config.tracing.as_ref()?.sample_ratio;
        Some(worker.with_random(|random| Trace::begin(&self.head, trusted, ratio, random)))
    }

    /// Hands an exchange that has ended over to become spans, if it is sampled.
    pub(super) fn hand_over(&self, account: &Account, progress: &Progress, record: &ExchangeRecord<'_>) {
        let Some(trace) = account.trace.filter(Trace::is_sampled) else {
            return;
        };
        let Some(tracer) = self.worker.tracer() else {
            return;
        };
        let sent = progress.sent_at.filter(|_| progress.endpoint.is_some());
        tracer.offer(sent.is_some(), || {
            let entry = account.route.map(|index| &account.snapshot.routes[index as usize]);
            let prefix = entry.map_or("", |entry| entry.config.path_prefix.as_str());
            let upstream = sent.map(|sent| self.upstream(account, progress, sent));
            Record::of(trace, &self.head, record, prefix, upstream)
        });
    }

    fn upstream(&self, account: &Account, progress: &Progress, sent: Instant) -> Upstream {
        let entry = account.route.map(|index| &account.snapshot.routes[index as usize]);
        let endpoint = progress.endpoint.as_ref();
        let began = sent.saturating_duration_since(account.clock);
        Upstream {
            host: endpoint.map_or_else(String::new, |endpoint| endpoint.host.clone()),
            address: endpoint.map_or_else(String::new, |endpoint| endpoint.label.clone()),
            target: entry.map_or_else(Vec::new, |entry| sent_target(entry, &self.head).into_owned()),
            began: began.saturating_sub(progress.connect.unwrap_or_default()),
            connect: progress.connect,
            first_byte: progress.first_byte_at.map(|first| first.saturating_duration_since(sent)),
            status: progress.answered.then_some(progress.status),
        }
    }
}
