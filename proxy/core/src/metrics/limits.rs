//! Metrics of rate limits and bans.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::encode::{Rows, count};
use crate::bans::BanCounts;
use crate::rate_limit::RateLimitCounts;

pub(super) fn encode(
    limits: &[RateLimitCounts],
    bans: BanCounts,
    encoder: &mut DescriptorEncoder,
) -> fmt::Result {
    let kind = MetricType::Counter;
    if !limits.is_empty() {
        let help = "Requests beyond a rate limit, by what became of them.";
        let mut family = encoder.encode_descriptor("sluice_rate_limited", help, None, kind)?;
        for limit in limits {
            for (outcome, n) in
                [("delayed", limit.delayed), ("rejected", limit.rejected), ("dry_run", limit.dry)]
            {
                let labels = [("limit", limit.name.as_str()), ("outcome", outcome)];
                count(&mut family.encode_family(&labels)?, n)?;
            }
        }
        let help = "Clients that a rate limit banned.";
        let mut family = encoder.encode_descriptor("sluice_rate_limit_bans", help, None, kind)?;
        for limit in limits {
            count(&mut family.encode_family(&[("limit", limit.name.as_str())])?, limit.banned)?;
        }
        let help =
            "Clients that a rate limit forgot before their time, because it had no room (clients_max).";
        let mut family = encoder.encode_descriptor("sluice_rate_limit_forgotten", help, None, kind)?;
        for limit in limits {
            count(&mut family.encode_family(&[("limit", limit.name.as_str())])?, limit.forgotten)?;
        }
        let help = "Requests that an exact rate limit counted for this host alone, because Redis had no answer in time.";
        let mut family = encoder.encode_descriptor("sluice_rate_limit_alone", help, None, kind)?;
        for limit in limits {
            count(&mut family.encode_family(&[("limit", limit.name.as_str())])?, limit.alone)?;
        }
    }
    let mut rows = Rows { encoder, prefix: "sluice_bans_" };
    rows.gauge("listed", "Addresses that are banned now.", bans.listed)?;
    let help = "Connections and requests of banned addresses that were turned away.";
    rows.counter("turned_away", help, bans.turned_away)?;
    let help = "Packets by which banned addresses tried to connect and which the kernel dropped.";
    rows.counter("dropped", help, bans.dropped)?;
    let help = "Clients that were not banned because as many as possible were (bans_max).";
    rows.counter("not_listed", help, bans.not_listed)
}
