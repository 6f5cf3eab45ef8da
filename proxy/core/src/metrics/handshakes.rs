//! TLS handshakes with clients, and the certificates that are served.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use sluice_config::{TlsVersion, Word};

use super::encode::count;
use super::series::bump;
use super::worker::WorkerRecorder;
use super::{State, lock};
use crate::tls::{Handshake, HandshakeFailure};

const VERSIONS: usize = TlsVersion::ALL.len();

/// One worker's handshakes, by outcome.
#[derive(Debug)]
pub(super) struct Handshakes {
    /// Successful handshakes: by version, full and resumed.
    done: [[AtomicU64; 2]; VERSIONS],
    /// By index of [`HandshakeFailure::ALL`].
    failed: [AtomicU64; HandshakeFailure::ALL.len()],
}

impl Default for Handshakes {
    fn default() -> Self {
        Self { done: Default::default(), failed: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Handshakes {
    fn counter(&self, handshake: Handshake) -> &AtomicU64 {
        match handshake {
            Handshake::Done { version, resumed } => &self.done[version as usize][usize::from(resumed)],
            Handshake::Failed(failure) => &self.failed[failure as usize],
        }
    }
}

impl WorkerRecorder {
    /// Counts a finished handshake.
    pub fn handshake(&self, handshake: Handshake) {
        bump(self.handshakes().counter(handshake), 1);
    }
}

/// A served certificate, at the time of a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateStatus {
    /// Its listener's name.
    pub listener: String,
    /// The first of its names.
    pub name: String,
    /// End of its validity, in seconds of Unix time.
    pub not_after: i64,
}

impl State {
    fn sum_handshakes(&self, handshake: Handshake) -> u64 {
        let workers = lock(&self.workers);
        workers.iter().map(|worker| worker.handshakes.counter(handshake).load(Relaxed)).sum()
    }

    pub(super) fn handshakes(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let kind = MetricType::Counter;
        let help = "Successful TLS handshakes with clients.";
        let mut family = encoder.encode_descriptor("sluice_tls_handshakes", help, None, kind)?;
        for version in TlsVersion::ALL.iter().copied() {
            for (resumed, word) in [(false, "no"), (true, "yes")] {
                let labels = [("version", version.word()), ("resumed", word)];
                let n = self.sum_handshakes(Handshake::Done { version, resumed });
                count(&mut family.encode_family(&labels)?, n)?;
            }
        }
        let help = "Failed TLS handshakes with clients, by reason.";
        let mut family = encoder.encode_descriptor("sluice_tls_handshake_failures", help, None, kind)?;
        for failure in HandshakeFailure::ALL.iter().copied() {
            let n = self.sum_handshakes(Handshake::Failed(failure));
            count(&mut family.encode_family(&[("reason", failure.word())])?, n)?;
        }
        Ok(())
    }
}

/// The end of validity of each certificate. Two certificates of one name on one listener are one series: clients get,
/// or will get, the one that is valid longer.
pub(super) fn encode(certificates: &[CertificateStatus], encoder: &mut DescriptorEncoder) -> fmt::Result {
    let mut latest = std::collections::BTreeMap::new();
    for one in certificates {
        let until = latest.entry((one.listener.as_str(), one.name.as_str())).or_insert(one.not_after);
        *until = one.not_after.max(*until);
    }
    let (unit, kind) = (Some(&Unit::Seconds), MetricType::Gauge);
    let help = "Certificate expiry time, in seconds since the Unix epoch.";
    let mut family = encoder.encode_descriptor("sluice_tls_certificate_expiry", help, unit, kind)?;
    for ((listener, name), until) in latest {
        family.encode_family(&[("listener", listener), ("name", name)])?.encode_gauge(&until)?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{Metrics, Status};
    use super::*;

    #[test]
    fn handshakes_are_summed_over_workers_by_outcome() {
        let metrics = Metrics::new();
        for worker in [metrics.add_worker(), metrics.add_worker()] {
            worker.handshake(Handshake::Done { version: TlsVersion::V13, resumed: true });
            worker.handshake(Handshake::Failed(HandshakeFailure::Protocol));
        }
        let text = metrics.render();
        for line in [
            "sluice_tls_handshakes_total{version=\"1.3\",resumed=\"yes\"} 2",
            "sluice_tls_handshakes_total{version=\"1.2\",resumed=\"no\"} 0",
            "sluice_tls_handshake_failures_total{reason=\"protocol\"} 2",
            "sluice_tls_handshake_failures_total{reason=\"timed_out\"} 0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn failures_are_numbered_in_list_order() {
        for (index, failure) in HandshakeFailure::ALL.iter().enumerate() {
            assert_eq!(*failure as usize, index);
        }
    }

    #[test]
    fn a_name_has_one_expiry_time() {
        let metrics = Metrics::new();
        metrics.set_status(|| Status {
            certificates: [2_000_000_000, 1_900_000_000]
                .map(|not_after| CertificateStatus {
                    listener: "web".into(),
                    name: "a.example".into(),
                    not_after,
                })
                .into(),
            ..Status::default()
        });
        let line = "sluice_tls_certificate_expiry_seconds{listener=\"web\",name=\"a.example\"} 2000000000\n";
        let text = metrics.render();
        assert!(text.contains(line), "{text}");
        assert_eq!(text.matches("certificate_expiry_seconds{").count(), 1);
    }
}
