//! One measurement of one proxy: the load, what it used, and its marks.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use sluice_testkit::pinned::PinnedTools;

use super::counts::Counts;
use super::load::{Outcome, Run};
use super::machine::{Watch, cpus};
use super::record::{Figure, Mark, Sample, Spent};
use super::rig::{DIRECT, Proxy, Rig};
use super::scenario::{Case, Generator, Work};
use super::{idle, postgres};

/// Share of the machine that programs outside the measurement may use.
pub(super) const OTHERS_MAX: f64 = 0.10;
const STOLEN_MAX: f64 = 0.05;
/// Share of its cores above which the load generator is the bottleneck.
const GENERATOR_MAX: f64 = 0.95;
/// Share of direct's rate above which origin or client is the bottleneck.
const ORIGIN_MAX: f64 = 0.95;
const REQUESTS_MIN: f64 = 1000.0;

/// Measures `proxy` once.
///
/// # Errors
/// The load generator fails.
pub(super) fn measure(
    case: &Case,
    rig: &Rig,
    proxy: &Proxy,
    (round, seconds): (usize, u64),
    tools: &PinnedTools,
) -> Result<Sample> {
    let counted = || proxy.admin.map(Counts::read).transpose();
    // Read outside the watched period, because the reading is not part of the measurement.
    let before = counted()?;
    let watch = Watch::start(&rig.origin, proxy.server.as_ref())?;
    let mut figures = BTreeMap::new();
    let outcome = perform(case, rig, proxy, seconds, tools, &mut figures)?;
    let spent = watch.end()?;
    let counts = counted()?.map(|now| now.since(&before.unwrap_or_default()));
    if !matches!(case.work, Work::Idle { .. }) {
        rates(case, proxy, &outcome, &spent, &mut figures);
    }
    figures.insert(Figure::Errors, outcome.errors);
    if let Some(cut_off) = outcome.cut_off {
        figures.insert(Figure::CutOff, cut_off);
    }
    let peak = proxy.server.as_ref().unwrap_or(&rig.origin).peak_kib();
    figures.insert(Figure::PeakKib, peak as f64);
    let marks = marks(case, &outcome, &spent);
    let latency_us = outcome.latency_us;
    Ok(Sample { round, proxy: proxy.name.clone(), figures, latency_us, counts, marks, spent })
}

/// Does the work itself; adds the figures that are specific to its kind.
#[expect(clippy::too_many_arguments, reason = "the figures are added to those of other kinds of work")]
fn perform(
    case: &Case,
    rig: &Rig,
    proxy: &Proxy,
    seconds: u64,
    tools: &PinnedTools,
    figures: &mut BTreeMap<Figure, f64>,
) -> Result<Outcome> {
    match case.work {
        Work::Http { generator, connections, keep_alive } => {
            let url = case.url(proxy.address);
            Run { generator, connections, keep_alive, rate: None, seconds, url: &url }.measure(tools)
        }
        Work::Open { connections, .. } => {
            let (rate, url) = (rig.rate, case.url(proxy.address));
            figures.insert(Figure::DuePerSecond, rate.context("no rate was found")?);
            Run { generator: Generator::Oha, connections, keep_alive: true, rate, seconds, url: &url }
                .measure(tools)
        }
        Work::Postgres { clients } => {
            let both = (proxy.address, rig.origin_address);
            let programs = tools.path("pgbench")?;
            let (outcome, seen) = postgres::measure(both, programs, clients, seconds, &rig.folder)?;
            figures.insert(Figure::DatabaseConnections, seen);
            Ok(outcome)
        }
        Work::Idle { connections } => {
            let server = proxy.server.as_ref().unwrap_or(&rig.origin);
            let idle =
                idle::measure(server, (proxy.address, rig.client()?.as_ref()), &case.path, connections)?;
            figures.insert(Figure::AddedKib, idle.added_kib);
            figures.insert(Figure::BytesPerConnection, idle.added_kib * 1024.0 / idle.open.max(1) as f64);
            Ok(Outcome { errors: idle.errors as f64, ..Outcome::default() })
        }
    }
}

fn rates(case: &Case, proxy: &Proxy, outcome: &Outcome, spent: &Spent, figures: &mut BTreeMap<Figure, f64>) {
    let requests = outcome.requests.max(1.0);
    figures.insert(Figure::RequestsPerSecond, outcome.requests / outcome.seconds);
    figures.insert(Figure::MachineCpuUs, spent.machine * 1e6 / requests);
    figures.insert(Figure::SystemCpuUs, spent.system * 1e6 / requests);
    let percentiles = [
        (Figure::P50Us, 50.0),
        (Figure::P90Us, 90.0),
        (Figure::P99Us, 99.0),
        (Figure::P999Us, 99.9),
        (Figure::P9999Us, 99.99),
    ];
    for (figure, percent) in percentiles {
        if let Some(us) = outcome.at(percent) {
            figures.insert(figure, us);
        }
    }
    if proxy.name == DIRECT {
        return;
    }
    figures.insert(Figure::ProxyCpuUs, spent.proxy * 1e6 / requests);
    if let Work::Http { connections, keep_alive, .. } = case.work {
        // The kernel counts for the whole machine; the other connections are the load generator's.
        let clients = connections as f64 + if keep_alive { 0.0 } else { outcome.requests };
        figures.insert(Figure::UpstreamOpened, (spent.opened - clients).max(0.0));
    }
}

fn marks(case: &Case, outcome: &Outcome, spent: &Spent) -> BTreeSet<Mark> {
    let machine = spent.wall * cpus() as f64;
    let ours = spent.proxy + spent.origin + spent.load;
    let cores = match case.work {
        Work::Http { generator, .. } => generator.cores(),
        Work::Open { .. } => Generator::Oha.cores(),
        Work::Postgres { .. } | Work::Idle { .. } => cpus(),
    };
    let idle = matches!(case.work, Work::Idle { .. });
    let crowded = matches!(case.work, Work::Open { neighbours: true, .. });
    [
        // With idle connections, this process is the client, so its CPU time is not that of other programs.
        (Mark::MachineBusy, !idle && !crowded && (spent.programs - ours) / machine > OTHERS_MAX),
        (Mark::Stolen, spent.stolen / machine > STOLEN_MAX),
        (Mark::Errors, outcome.errors > 0.0),
        (Mark::LoadGeneratorLimit, spent.load / (spent.wall * cores as f64) >= GENERATOR_MAX),
        (Mark::FewRequests, !idle && outcome.requests < REQUESTS_MIN),
    ]
    .into_iter()
    .filter_map(|(mark, holds)| holds.then_some(mark))
    .collect()
}

/// The rate for an open-loop case: a share of what nginx achieves with the same load generator.
///
/// # Errors
/// nginx is not among the proxies, or the load generator fails.
pub(super) fn find_rate(case: &Case, rig: &Rig, seconds: u64, tools: &PinnedTools) -> Result<Option<f64>> {
    let Work::Open { connections, percent, .. } = case.work else { return Ok(None) };
    let nginx = rig.proxies.iter().find(|proxy| proxy.name == "nginx");
    let url = case.url(nginx.context("the rate is a share of nginx's, which is not measured")?.address);
    let generator = Generator::Oha;
    let run = Run { generator, connections, keep_alive: true, rate: None, seconds, url: &url };
    let outcome = run.measure(tools)?;
    Ok(Some(outcome.requests / outcome.seconds * f64::from(percent) / 100.0))
}

/// Marks the samples of a round in which a proxy is as fast as direct.
///
/// # Errors
/// The round has no direct sample.
pub(super) fn mark_origin_limit(samples: &mut [Sample], round: usize) -> Result<()> {
    let rate = |sample: &Sample| sample.figures.get(&Figure::RequestsPerSecond).copied();
    let mut of_round: Vec<&mut Sample> = samples.iter_mut().filter(|sample| sample.round == round).collect();
    let direct = of_round.iter().find(|sample| sample.proxy == DIRECT).context("direct is missing")?;
    let Some(direct) = rate(direct) else { return Ok(()) };
    for sample in &mut of_round {
        if sample.proxy != DIRECT && rate(sample).is_some_and(|rate| rate >= direct * ORIGIN_MAX) {
            sample.marks.insert(Mark::OriginLimit);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sample(proxy: &str, rate: f64) -> Sample {
        Sample {
            round: 0,
            proxy: proxy.to_owned(),
            figures: [(Figure::RequestsPerSecond, rate)].into(),
            latency_us: Vec::new(),
            counts: None,
            marks: BTreeSet::new(),
            spent: Spent::default(),
        }
    }

    #[test]
    fn proxy_as_fast_as_direct_is_marked_as_origin_limit() {
        let mut samples = [sample("sluice", 95.0), sample(DIRECT, 100.0), sample("nginx", 94.0)];
        mark_origin_limit(&mut samples, 0).unwrap();
        let marked = samples.map(|sample| sample.marks.contains(&Mark::OriginLimit));
        assert_eq!(marked, [true, false, false]);
        assert!(mark_origin_limit(&mut [], 0).is_err());
    }
}
