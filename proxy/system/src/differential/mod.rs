//! A differential fuzzer: mutated requests and responses pass through sluice, and the result is compared with an
//! independent reading of what was sent. `cargo xtask test differential [--seed S] [--cases N]`.
//!
//! Requests go to our strict origin, then to real servers, whose applications must have seen the same. Anything more
//! that they see was smuggled. Responses come from another origin of ours.

mod answers;
mod client;
mod findings;
mod finds;
mod forwarded;
mod grammar;
mod mismatch;
mod offered;
mod origin;
mod proxy;
mod report;
mod requests;
mod responses;
mod round;
mod round_trip;
mod seen;
mod sent;
mod server;
mod servers;
mod turncoat;
mod wire;

use std::path::Path;

use anyhow::Result;
use proxy::Under;
use round::Round;
use servers::SERVERS;
use sluice_testkit::packages::Tools;
use sluice_testkit::tally::Tally;

/// Cases of one run, unless the command line sets another number.
const CASES: u64 = 20_000;
/// The seed used in CI: a run that fails there fails here.
const SEED: u64 = 1;

const REQUESTS: &str = "differential::requests";
const RESPONSES: &str = "differential::responses";
/// The same with joined connections.
const JOINED: [&str; 2] = ["differential_joined::requests", "differential_joined::responses"];
/// One in this many cases also runs with joined connections.
const JOINED_SHARE: u64 = 4;

/// What to run.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    seed: u64,
    cases: u64,
}

impl Plan {
    /// A plan with the settings of the command line.
    pub(crate) fn new(seed: Option<u64>, cases: Option<u64>) -> Self {
        Self { seed: seed.unwrap_or(SEED), cases: cases.unwrap_or(CASES) }
    }
}

/// The names of all checks.
pub(crate) fn names() -> impl Iterator<Item = String> {
    let servers = SERVERS.iter().map(|server| server.check);
    [REQUESTS, RESPONSES].into_iter().chain(servers).map(str::to_owned)
}

/// Whether the filter only names checks of this module.
pub(crate) fn is_alone(filter: &str) -> bool {
    filter.starts_with("differential")
}

/// Runs the requested checks.
///
/// # Errors
/// When the file of finds is malformed. Findings are counted, not errors.
pub(crate) fn run(plan: Plan, binary: &Path, tools: &Tools, tally: &mut Tally) -> Result<()> {
    if !names().any(|name| tally.wants(&name)) {
        return Ok(());
    }
    tally.heading("differential");
    println!("seed {}, {} cases", plan.seed, plan.cases);
    let under = &Under { binary, joined: None, server: None };
    let round = Round::new(plan)?;
    let wanted: Vec<_> = SERVERS.iter().filter(|server| tally.wants(server.check)).collect();
    if tally.wants(REQUESTS) || !wanted.is_empty() {
        // Real servers are compared with its result, so it runs for them too.
        tally.settle(REQUESTS, round.strict(under));
    }
    for server in wanted {
        match server.lack(tools) {
            Some(lack) => tally.skip(server.check, 1, &lack),
            None => tally.check(server.check, || round.real(server, under)),
        }
    }
    tally.check(RESPONSES, || round_trip::responses(plan, under));
    Ok(())
}

/// The names of the checks of [`run_joined`].
pub(crate) fn joined_names() -> impl Iterator<Item = String> {
    JOINED.into_iter().map(str::to_owned)
}

/// The cases against our origins with `bypass` as `kernel.bypass`. Needs root, and eBPF if required.
///
/// # Errors
/// As for [`run`].
pub(crate) fn run_joined(plan: Plan, binary: &Path, bypass: &str, tally: &mut Tally) -> Result<()> {
    let [requests, responses] = JOINED;
    let plan = Plan { cases: plan.cases / JOINED_SHARE, ..plan };
    let under = &Under { binary, joined: Some(bypass), server: None };
    tally.check(requests, || Round::new(plan)?.strict(under));
    tally.check(responses, || round_trip::responses(plan, under));
    Ok(())
}
