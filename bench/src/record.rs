//! Types for results: cases, samples, figures, marks. Nothing is measured here.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::counts::Counts;

/// A quantity with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Figure {
    /// Responses, or transactions, per second.
    RequestsPerSecond,
    /// The median latency.
    P50Us,
    /// 90 % of responses are at least as fast.
    P90Us,
    /// 99 % of responses are at least as fast.
    P99Us,
    /// 99.9 % of responses are at least as fast.
    P999Us,
    /// 99.99 % of responses are at least as fast.
    P9999Us,
    /// Requests per second that were due.
    DuePerSecond,
    /// CPU time of the whole machine per request.
    MachineCpuUs,
    /// The kernel's part of it, including interrupts.
    SystemCpuUs,
    /// CPU time of the proxy alone per request.
    ProxyCpuUs,
    /// Connections opened to the origin.
    UpstreamOpened,
    /// Requests without a 2xx or 3xx response.
    Errors,
    /// Requests in progress at the end of the run, whose latency is unknown.
    CutOff,
    /// Peak resident memory of the proxy, over all its processes.
    PeakKib,
    /// Memory that the idle connections added to the proxy.
    AddedKib,
    /// The same per connection.
    BytesPerConnection,
    /// Maximum number of connections that the database server saw.
    DatabaseConnections,
}

impl Figure {
    /// The label of its table row.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::RequestsPerSecond => "req/s",
            Self::P50Us => "p50, us",
            Self::P90Us => "p90, us",
            Self::P99Us => "p99, us",
            Self::P999Us => "p99.9, us",
            Self::P9999Us => "p99.99, us",
            Self::DuePerSecond => "due/s",
            Self::MachineCpuUs => "CPU of the machine, us/request",
            Self::SystemCpuUs => "system CPU of the machine, us/request",
            Self::ProxyCpuUs => "CPU of the proxy, us/request",
            Self::UpstreamOpened => "upstream connections opened",
            Self::Errors => "errors",
            Self::CutOff => "under way at the end",
            Self::PeakKib => "peak memory, KiB",
            Self::AddedKib => "memory added, KiB",
            Self::BytesPerConnection => "memory a connection, bytes",
            Self::DatabaseConnections => "database connections",
        }
    }

    /// Whether a ratio between proxies is meaningful.
    pub(super) fn compares(self) -> bool {
        !matches!(
            self,
            Self::Errors
                | Self::CutOff
                | Self::DuePerSecond
                | Self::UpstreamOpened
                | Self::DatabaseConnections
        )
    }
}

/// Why a sample must be read with care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Mark {
    /// Other programs used a part of the machine.
    MachineBusy,
    /// The hypervisor took a part of the machine.
    Stolen,
    /// Some requests failed.
    Errors,
    /// The load generator had no CPU left on its threads.
    LoadGeneratorLimit,
    /// The origin is the bottleneck: the rate through the proxy is the same as without it.
    OriginLimit,
    /// Too few responses for the highest percentile.
    FewRequests,
}

impl Mark {
    /// In words, with the criterion.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::MachineBusy => "other programs used over 10 % of the machine",
            Self::Stolen => "the hypervisor took over 5 % of the machine",
            Self::Errors => "some requests failed",
            Self::LoadGeneratorLimit => "the load generator used 95 % or more of the CPU it can use",
            Self::OriginLimit => "origin or client is the bottleneck: at least 95 % of direct's req/s",
            Self::FewRequests => "under 1000 requests: p99.9 is the slowest few",
        }
    }
}

/// One proxy in one round.
#[derive(Serialize)]
pub(super) struct Sample {
    /// From 0.
    pub(super) round: usize,
    /// `direct`, `sluice` or a peer.
    pub(super) proxy: String,
    /// The measured figures.
    pub(super) figures: BTreeMap<Figure, f64>,
    /// Percentile and microseconds, ascending.
    pub(super) latency_us: Vec<(f64, f64)>,
    /// What sluice counted meanwhile; `None` for other proxies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) counts: Option<Counts>,
    /// Its marks, if any.
    pub(super) marks: BTreeSet<Mark>,
    /// What the programs of this measurement used.
    pub(super) spent: Spent,
}

/// CPU seconds within one measurement.
#[derive(Clone, Copy, Default, Serialize)]
pub(super) struct Spent {
    /// Wall clock.
    pub(super) wall: f64,
    /// Every mode except idle and iowait.
    pub(super) machine: f64,
    /// System time of all programs, and interrupts.
    pub(super) system: f64,
    /// User and system time of all programs.
    pub(super) programs: f64,
    /// Taken by the hypervisor.
    pub(super) stolen: f64,
    /// The proxy; 0 for direct.
    pub(super) proxy: f64,
    /// The origin.
    pub(super) origin: f64,
    /// The load generator.
    pub(super) load: f64,
    /// TCP connections opened by any program in this network namespace.
    pub(super) opened: f64,
}

/// One measured case of a scenario.
#[derive(Serialize)]
pub(super) struct CaseRecord {
    /// Unique; used in file names.
    pub(super) name: String,
    /// A description of the case.
    pub(super) about: String,
    /// In the order of the columns.
    pub(super) proxies: Vec<String>,
    /// All samples, in the order in which they were taken.
    pub(super) samples: Vec<Sample>,
    /// SHA-256 of the body of every proxy's response.
    pub(super) body_sha256: Option<String>,
    /// Proxies that are not measured, and why.
    pub(super) refused: BTreeMap<String, String>,
}

impl CaseRecord {
    /// The values of one figure for one proxy, by round.
    pub(super) fn values(&self, proxy: &str, figure: Figure) -> Vec<f64> {
        self.of(proxy).filter_map(|sample| sample.figures.get(&figure).copied()).collect()
    }

    /// Ratios of `proxy` to `other`, per round.
    pub(super) fn ratios(&self, proxy: &str, other: &str, figure: Figure) -> Vec<f64> {
        let in_round = |name: &str, round: usize| {
            self.of(name)
                .find(|sample| sample.round == round)
                .and_then(|sample| sample.figures.get(&figure).copied())
        };
        self.of(proxy)
            .filter_map(|sample| {
                let below = in_round(other, sample.round).filter(|below| *below > 0.0)?;
                Some(sample.figures.get(&figure)? / below)
            })
            .collect()
    }

    /// The difference in a figure between `proxy` and `other`, per round.
    pub(super) fn differences(&self, proxy: &str, other: &str, figure: Figure) -> BTreeMap<usize, f64> {
        let of = |name: &str| -> BTreeMap<usize, f64> {
            let values = self.of(name).filter_map(|one| Some((one.round, *one.figures.get(&figure)?)));
            values.collect()
        };
        let below = of(other);
        let with_below = |(round, value): (usize, f64)| Some((round, value - below.get(&round)?));
        of(proxy).into_iter().filter_map(with_below).collect()
    }

    /// The samples of one proxy.
    pub(super) fn of<'a>(&'a self, proxy: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |sample| sample.proxy == proxy)
    }

    /// The figure shown as bars in its plot.
    pub(super) fn headline(&self) -> Figure {
        let has = |figure| self.samples.iter().any(|sample| sample.figures.contains_key(&figure));
        if has(Figure::RequestsPerSecond) { Figure::RequestsPerSecond } else { Figure::BytesPerConnection }
    }
}
