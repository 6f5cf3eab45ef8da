//! ACME metrics: attempts, `ask` requests, and the time of the next attempt.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::encode::count;
use super::{AcmeStatus, AskOutcome, AttemptOutcome};

pub(super) fn encode(status: &AcmeStatus, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let kind = MetricType::Counter;
    let help = "Attempts to obtain a certificate, by outcome.";
    let mut family = encoder.encode_descriptor("sluice_acme_attempts", help, None, kind)?;
    for outcome in AttemptOutcome::ALL {
        let labels = [("outcome", outcome.word())];
        count(&mut family.encode_family(&labels)?, status.attempts[outcome as usize])?;
    }
    let help = "Checks whether a name requested by a client may get a certificate, by outcome.";
    let mut family = encoder.encode_descriptor("sluice_acme_asks", help, None, kind)?;
    for outcome in AskOutcome::ALL {
        let labels = [("outcome", outcome.word())];
        count(&mut family.encode_family(&labels)?, status.asks[outcome as usize])?;
    }
    let mut gauge = |name: &str, help: &str, unit: Option<&Unit>, value: u64| {
        encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?.encode_gauge(&value)
    };
    gauge("sluice_acme_names", "Names with automatic certificates.", None, status.names)?;
    gauge("sluice_acme_names_failing", "Names whose last attempt failed.", None, status.failing)?;
    let help = "Time of the next attempt to obtain a certificate, in Unix time.";
    let next = status.next_attempt_s.unwrap_or(0);
    gauge("sluice_acme_next_attempt_timestamp", help, Some(&Unit::Seconds), next)
}
