//! `cargo xtask bench`: compares sluice with other proxies in interleaved rounds. See `bench/README.md`.

mod scenario;
mod tls;
mod server;
mod machine;
mod origin;
mod peers;
mod rig;
mod client;
mod check;
mod load;
mod neighbour;
mod idle;
mod postgres;
mod counts;
mod measure;
mod record;
mod stats;
mod progress;
mod number;
mod compare;
mod report;
mod summary;
mod plot;
mod results;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use machine::Machine;
use neighbour::Neighbour;
use peers::{PEERS, SLUICE, is_sluice};
use progress::{Progress, in_words, planned};
use record::{CaseRecord, Figure, Sample};
use results::Results;
use rig::{DIRECT, Equipment, Rig};
use scenario::{Case, Generator, Work};
use sluice_testkit::pinned::PinnedTools;
use sluice_testkit::{process, workspace};
use tls::Tls;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Benchmarks of sluice")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare sluice with other proxies; results go to bench/results/NAME.
    Bench(Options),
}

fn main() -> ExitCode {
    let Cli { command: Command::Bench(options) } = Cli::parse();
    match bench(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What to measure, and for how long.
#[derive(Args)]
pub(crate) struct Options {
    /// Scenarios to measure [default: all].
    #[arg(value_parser = PossibleValuesParser::new(scenario::values()))]
    scenarios: Vec<String>,
    /// Proxies to compare with [default: all that are available]. Other configurations of sluice are measured, too,
    /// unless you name some of them.
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(names_of_peers()))]
    peers: Option<Vec<String>>,
    /// Number of rounds.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Seconds per measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Name of the folder for the results, below bench/results.
    #[arg(long, default_value = "latest", value_name = "NAME")]
    out: String,
    /// Add a soak of this many minutes per proxy to `overload`.
    #[arg(long, default_value_t = 0)]
    soak_minutes: u64,
    /// Measure even if other programs use the machine; the results are marked.
    #[arg(long)]
    although_busy: bool,
    /// Binary to use instead of the release build.
    #[arg(long, hide = true)]
    proxy_bin: Option<PathBuf>,
}

fn names_of_peers() -> Vec<&'static str> {
    PEERS.iter().map(|(name, _)| *name).filter(|name| *name != SLUICE).collect()
}

/// Measures what `options` request; writes tables, plots and raw figures.
///
/// # Errors
/// The machine is busy, or a scenario cannot be measured at all.
pub(crate) fn bench(options: &Options) -> Result<()> {
    let cases = scenario::cases(&options.scenarios, options.soak_minutes);
    process::raise_descriptor_limit()?;
    let equipment = equip(options, &cases)?;
    let machine = Machine::look()?;
    let busy = machine.busy_before > measure::OTHERS_MAX;
    ensure!(
        !busy || options.although_busy,
        "{:.0} % of the machine is in use; wait, or measure anyway with --although-busy",
        machine.busy_before * 100.0
    );
    let mut results = Results::new(options, machine, &equipment)?;
    let total = cases.iter().map(|case| steps(case, options) * equipment.columns(case)).sum();
    println!("about {}", in_words(Duration::from_secs(total)));
    let mut progress = Progress::new(total);
    for case in &cases {
        match run(case, options, &equipment, &mut progress) {
            Ok(record) => results.add(record)?,
            Err(error) => results.skip(&case.name, &format!("{error:#}"))?,
        }
    }
    progress.end();
    results.end()
}

/// Finds or installs what the cases need, and builds sluice.
fn equip(options: &Options, cases: &[Case]) -> Result<Equipment> {
    let wanted = |name: &str| wanted(name, options.peers.as_deref());
    let peers: Vec<_> = PEERS.iter().filter(|(name, _)| wanted(name)).collect();
    let mut needed = vec!["curl", "sha256sum"];
    needed.extend(peers.iter().flat_map(|(_, tools)| *tools));
    for case in cases {
        needed.extend(case.origin.tools());
        if case.tls != Tls::None {
            needed.push("openssl");
        }
        match case.work {
            Work::Http { generator, .. } => needed.push(generator.tool()),
            Work::Open { .. } => needed.push(Generator::Oha.tool()),
            Work::Postgres { .. } if wanted("nginx") => needed.push("nginx-stream"),
            Work::Postgres { .. } | Work::Idle { .. } => {}
        }
    }
    let tools = PinnedTools::prepare(&needed);
    let can = |tools_of: &[&str]| tools_of.iter().all(|tool| tools.path(tool).is_ok());
    let peers = peers.into_iter().filter(|(_, tools_of)| can(tools_of)).map(|(name, _)| *name).collect();
    let sluice = match &options.proxy_bin {
        Some(binary) => binary.clone(),
        None => workspace::release_binary()?,
    };
    Ok(Equipment { peers, tools, sluice })
}

/// Whether `name` is measured, given the names on the command line.
fn wanted(name: &str, named: Option<&[String]>) -> bool {
    let Some(named) = named else { return true };
    let all_of_sluice = !named.iter().any(|name| is_sluice(name));
    name == SLUICE || named.iter().any(|one| one == name) || (all_of_sluice && is_sluice(name))
}

/// Planned seconds of a case per column.
fn steps(case: &Case, options: &Options) -> u64 {
    planned(seconds(case, options)) * rounds(case, options) as u64
}

fn seconds(case: &Case, options: &Options) -> u64 {
    case.soak_seconds.unwrap_or(options.seconds)
}

fn rounds(case: &Case, options: &Options) -> usize {
    if case.soak_seconds.is_some() { 1 } else { options.rounds }
}

/// Measures a case round by round, in rotating order.
fn run(case: &Case, options: &Options, equipment: &Equipment, progress: &mut Progress) -> Result<CaseRecord> {
    progress.begin(&format!("{}: starting", case.name));
    let mut rig = Rig::start(case, equipment)?;
    if matches!(case.work, Work::Open { neighbours: true, .. }) {
        rig.neighbours = Neighbour::on_each_core()?;
    }
    rig.rate = measure::find_rate(case, &rig, options.seconds, &equipment.tools)?;
    let mut samples: Vec<Sample> = Vec::new();
    for round in 0..rounds(case, options) {
        // A process keeps memory that it has used, so only a new process shows what connections add.
        if round > 0 && matches!(case.work, Work::Idle { .. }) {
            drop(rig);
            rig = Rig::start(case, equipment)?;
        }
        for place in 0..rig.proxies.len() {
            let proxy = &rig.proxies[(place + round) % rig.proxies.len()];
            progress.begin(&format!("{}, round {}: {}", case.name, round + 1, proxy.name));
            rig.settle(case)?;
            let seconds = seconds(case, options);
            let sample = measure::measure(case, &rig, proxy, (round, seconds), &equipment.tools)
                .with_context(|| format!("{}: {}", case.name, proxy.name))?;
            progress.step(seconds, &line(case, &sample));
            samples.push(sample);
        }
        // If requests are sent at fixed times, all proxies have the same rate.
        if rig.rate.is_none() {
            measure::mark_origin_limit(&mut samples, round)?;
        }
    }
    Ok(CaseRecord {
        name: case.name.clone(),
        about: case.about(),
        proxies: rig.proxies.iter().map(|proxy| proxy.name.clone()).collect(),
        samples,
        body_sha256: rig.body_sha256.take(),
        refused: std::mem::take(&mut rig.refused),
    })
}

/// The line to show for a finished measurement.
fn line(case: &Case, sample: &Sample) -> String {
    let figure =
        |figure: Figure| sample.figures.get(&figure).map(|value| format!("{value:.0} {}", figure.label()));
    let shown = [Figure::RequestsPerSecond, Figure::P99Us, Figure::BytesPerConnection];
    let shown: Vec<String> = shown.into_iter().filter_map(figure).collect();
    let name = if sample.proxy == DIRECT { "direct" } else { &sample.proxy };
    format!("{} {} {name}: {}", case.name, sample.round + 1, shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naming_one_variant_of_sluice_excludes_the_others() {
        let measured = |named: &[&str]| -> Vec<&str> {
            let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
            let names = ["sluice", "sluice-bypass", "sluice-copy", "nginx", "haproxy"];
            names.into_iter().filter(|name| wanted(name, Some(&named))).collect()
        };
        assert_eq!(measured(&["nginx"]), ["sluice", "sluice-bypass", "sluice-copy", "nginx"]);
        assert_eq!(measured(&["nginx", "sluice-bypass"]), ["sluice", "sluice-bypass", "nginx"]);
        assert!(wanted("haproxy", None));
    }
}
