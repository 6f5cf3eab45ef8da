//! A mix-up storm: `cargo xtask test storm [--minutes N] [--seed S]`. Hundreds of clients request responses that carry
//! their token in each line, from origins that misbehave in every known way, while origins stop, the configuration
//! changes and processes are replaced. No client may see a byte that was meant for another.
//!
//! The requests of each client and the responses of each origin follow from the seed; their timing does not.

mod client;
mod findings;
mod mode;
mod origin;
mod plan;
mod site;
mod token;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use client::Clients;
use findings::{Findings, Outcome};
use mode::Menu;
use origin::Origins;
use serde_json::{Value, json};
use site::Site;
use sluice_testkit::process::raise_descriptor_limit;
use sluice_testkit::tally::Tally;
use token::mix;

/// All storms.
const NAME: &str = "storm";

/// If this variable is set, outcomes are shown by mode.
const SHOW_TABLE: &str = "SLUICE_STORM_TABLE";

/// Duration of all storms together, unless set otherwise.
const MINUTES: u64 = 1;

/// Between two disturbances.
const MOMENT_MAX_MS: u64 = 1200;

/// The settings of a sluice.
struct Storm {
    name: &'static str,
    kernel: fn() -> Value,
    /// A single worker has more to do at once between two looks at its connections.
    workers: usize,
    /// Whether kernel assists are required, which an unprivileged user does not have.
    assisted: bool,
    /// Whether it only runs when named.
    named: bool,
}

const STORMS: &[Storm] = &[
    Storm { name: "mixup_storm::copied", kernel: copied, workers: 1, assisted: false, named: false },
    Storm { name: "mixup_storm::joined", kernel: joined, workers: 1, assisted: true, named: false },
    Storm { name: "mixup_storm::direct", kernel: direct, workers: 2, assisted: true, named: false },
    // Its clients rely on a short read having left nothing behind, as epoll(7) says, which joined sockets do not
    // guarantee.
    Storm { name: "mixup_storm::both_sides", kernel: both_sides, workers: 2, assisted: true, named: true },
];

fn copied() -> Value {
    json!({"bypass": "off", "direct_return": "off", "splice": "off"})
}

fn joined() -> Value {
    json!({"bypass": "required", "direct_return": "off", "splice": "off"})
}

/// Every eligible response uses direct return, from the first request of a connection and with any size.
fn direct() -> Value {
    json!({"bypass": "required", "direct_return": "required", "splice": "off", "direct_return_from_request": 1,
        "direct_return_bytes_min": 0, "direct_return_calm_max": 4096, "direct_return_hold_after": 1})
}

/// Clients' own connections are joined too.
fn both_sides() -> Value {
    json!({"bypass": "required", "bypass_downstream": "on", "direct_return": "auto", "splice": "off"})
}

/// The duration, the seed, and the behaviour of origins.
pub(crate) struct Weather {
    pub(crate) minutes: Option<u64>,
    pub(crate) seed: Option<u64>,
    /// What origins may do; everything if none are named.
    pub(crate) modes: Vec<String>,
}

/// Whether only storms are requested.
pub(crate) fn is_named(filter: &str) -> bool {
    filter == NAME || STORMS.iter().any(|storm| storm.name == filter)
}

/// Runs the requested storms. The binary is built only then; `obstacle` says why none can use the kernel assists, if
/// so.
///
/// # Errors
/// When the binary is not available. Findings of a storm are counted, not errors.
pub(crate) fn run(
    weather: &Weather,
    binary: impl FnOnce() -> Result<PathBuf>,
    obstacle: impl FnOnce(&Path) -> Result<Option<String>>,
    tally: &mut Tally,
) -> Result<()> {
    let wanted: Vec<&Storm> = STORMS.iter().filter(|storm| storm.is_wanted(tally)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    tally.heading("mix-up storm");
    raise_descriptor_limit()?;
    let binary = binary()?;
    let obstacle = obstacle(&binary)?;
    let possible = wanted.iter().filter(|storm| !storm.assisted || obstacle.is_none()).count();
    let whole = Duration::from_secs(60 * weather.minutes.unwrap_or(MINUTES));
    let time = whole / u32::try_from(possible.max(1))?;
    let seed = weather.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    for storm in wanted {
        match &obstacle {
            Some(reason) if storm.assisted => tally.skip(storm.name, 1, reason),
            _ => tally.check(storm.name, || {
                println!("{}: seed {seed}, {} clients, {} s", storm.name, client::CLIENTS, time.as_secs());
                storm.rage(&binary, time, seed, &weather.modes).with_context(|| {
                    let name = storm.name;
                    format!("seed {seed} (cargo xtask test {name} --seed {seed})")
                })
            }),
        }
    }
    Ok(())
}

impl Storm {
    fn is_wanted(&self, tally: &Tally) -> bool {
        if self.named { tally.filter() == Some(self.name) } else { tally.wants(self.name) }
    }

    /// Runs it; returns a summary.
    fn rage(&self, binary: &Path, time: Duration, seed: u64, modes: &[String]) -> Result<String> {
        let menu = Menu::new(modes)?;
        let mut site = Site::start(&self.name.replace("::", "-"), binary, (self.kernel)(), self.workers)?;
        let findings = Arc::new(Findings::default());
        let origins = Origins::start(&site.places, &findings)?;
        let clients = Clients::start(seed, menu, site.doors.clone(), &findings);
        let disturbed = disturb(&mut site, &origins, &clients, &findings, time, seed);
        findings.end();
        clients.join()?;
        origins.stop()?;
        let stopped = site.stop();
        if std::env::var_os(SHOW_TABLE).is_some() {
            println!("{}", findings.table());
        }
        let summary = findings.summary();
        if let Some(faults) = findings.faults() {
            bail!("{faults}\n{summary}");
        }
        let disturbances = disturbed?;
        stopped?;
        let whole = findings.number(|outcome| outcome == Outcome::Whole);
        let refused = findings.number(|outcome| matches!(outcome, Outcome::Refused(_)));
        ensure!(whole > refused, "hardly any request is served: {summary}");
        Ok(format!("{summary}; {disturbances}; seed {seed}"))
    }
}

/// Stops origins, reloads and upgrades until the time is over; returns how often.
#[expect(clippy::too_many_arguments, reason = "everything in the storm that it disturbs")]
fn disturb(
    site: &mut Site,
    origins: &Origins,
    clients: &Clients,
    findings: &Findings,
    time: Duration,
    seed: u64,
) -> Result<String> {
    let mut random = fastrand::Rng::with_seed(mix(seed));
    let end = Instant::now() + time;
    let (mut restarts, mut reloads, mut upgrades) = (0, 0, 0);
    while Instant::now() < end && !findings.has_enough() {
        if clients.have_ended() {
            return Err(anyhow!("the clients have ended"));
        }
        thread::sleep(Duration::from_millis(random.u64(100..MOMENT_MAX_MS)));
        match random.u8(..10) {
            0..=5 => {
                origins.restart(random.usize(..), Duration::from_millis(random.u64(..150)));
                restarts += 1;
            }
            6..=8 => {
                site.reload(random.usize(..18))?;
                reloads += 1;
            }
            _ => {
                // Both processes accept connections meanwhile, and the old one closes its kept ones.
                findings.replace();
                site.upgrade()?;
                findings.replace();
                upgrades += 1;
            }
        }
    }
    Ok(format!("{restarts} restarts, {reloads} reloads, {upgrades} upgrades"))
}
