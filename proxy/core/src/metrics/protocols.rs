//! Exchanges by the version of HTTP that the client speaks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::encode::count;
use super::series::bump;
use super::{State, lock};

/// As the access log names them.
const PROTOCOLS: [&str; 4] = ["HTTP/1.0", "HTTP/1.1", "HTTP/2.0", "HTTP/3.0"];

/// One worker's counters.
#[derive(Debug, Default)]
pub(super) struct Protocols([AtomicU64; PROTOCOLS.len()]);

impl Protocols {
    /// Counts an exchange; a tunnel of TCP has no version.
    pub(super) fn record(&self, version: &str) {
        if let Some(index) = PROTOCOLS.iter().position(|protocol| *protocol == version) {
            bump(&self.0[index], 1);
        }
    }
}

impl State {
    /// Exchanges by version, those that occurred.
    pub(super) fn sum_protocols(&self) -> BTreeMap<&'static str, u64> {
        let sum = |index: usize| {
            lock(&self.workers).iter().map(|worker| worker.protocols.0[index].load(Relaxed)).sum()
        };
        let all = PROTOCOLS.into_iter().enumerate().map(|(index, protocol)| (protocol, sum(index)));
        all.filter(|(_, count): &(_, u64)| *count > 0).collect()
    }

    pub(super) fn protocols(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Exchanges ended, by the version of HTTP that the client speaks.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_protocol_requests", help, None, kind)?;
        let counts = self.sum_protocols();
        for protocol in PROTOCOLS {
            let n = counts.get(protocol).copied().unwrap_or_default();
            count(&mut family.encode_family(&[("protocol", protocol)])?, n)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_of_http_are_counted() {
        let protocols = Protocols::default();
        for version in ["HTTP/1.1", "HTTP/3.0", "TCP", "", "HTTP/3.0"] {
            protocols.record(version);
        }
        let counts = protocols.0.map(AtomicU64::into_inner);
        assert_eq!(counts, [0, 1, 0, 2]);
    }
}
