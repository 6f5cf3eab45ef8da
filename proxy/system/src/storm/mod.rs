//! A mix-up storm: `cargo xtask test storm [--minutes N] [--seed S]`. Hundreds of clients ask for answers that carry their
//! token in each line, of origins that misbehave in every way we know, while origins stop, the configuration changes
//! and processes are replaced. No client may see a byte that was meant for another.
//!
//! What each client asks and each origin answers follows from the seed. When, does not.

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

/// Set in the environment, it has outcomes shown by mode.
const SHOW_TABLE: &str = "SLUICE_STORM_TABLE";

/// Of all storms together, unless asked otherwise.
const MINUTES: u64 = 1;

/// Between two disturbances.
const MOMENT_MAX_MS: u64 = 1200;

/// What sluice is run with.
struct Storm {
    name: &'static str,
    kernel: fn() -> Value,
    /// One has more to do at once between two looks at its connections.
    workers: usize,
    /// Whether the kernel's help is required, which a plain user does not have.
    assisted: bool,
    /// Whether it is run by its own name only.
    named: bool,
}

const STORMS: &[Storm] = &[
    Storm { name: "mixup_storm::copied", kernel: copied, workers: 1, assisted: false, named: false },
    Storm { name: "mixup_storm::joined", kernel: joined, workers: 1, assisted: true, named: false },
    Storm { name: "mixup_storm::direct", kernel: direct, workers: 2, assisted: true, named: false },
    // Its clients rest on a short read having left nothing behind, as epoll(7) has it, which joined sockets do not keep.
    Storm { name: "mixup_storm::both_sides", kernel: both_sides, workers: 2, assisted: true, named: true },
];

fn copied() -> Value {
    json!({"bypass": "off", "direct_return": "off", "splice": "off"})
}

fn joined() -> Value {
    json!({"bypass": "required", "direct_return": "off", "splice": "off"})
}

/// Answers go past sluice wherever they can, from the first request of a connection and of any size.
fn direct() -> Value {
    json!({"bypass": "required", "direct_return": "required", "splice": "off", "direct_return_from_request": 1,
        "direct_return_bytes_min": 0, "direct_return_calm_max": 4096, "direct_return_hold_after": 1})
}

/// Clients' own connections, too, are joined.
fn both_sides() -> Value {
    json!({"bypass": "required", "bypass_downstream": "on", "direct_return": "auto", "splice": "off"})
}

/// How long, from which seed, and what origins do.
pub(crate) struct Weather {
    pub(crate) minutes: Option<u64>,
    pub(crate) seed: Option<u64>,
    /// What origins may do; everything if none are named.
    pub(crate) modes: Vec<String>,
}

/// Whether nothing but storms is asked for.
pub(crate) fn is_named(filter: &str) -> bool {
    filter == NAME || STORMS.iter().any(|storm| storm.name == filter)
}

/// Runs the storms that the tally wants. The binary is asked for only then; `obstacle` says why none can use the
/// kernel's help, if so.
///
/// # Errors
/// When the binary cannot be had. What a storm finds is counted, not an error.
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

    /// Runs it; what was seen, in words.
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
        ensure!(whole > refused, "hardly anything is served: {summary}");
        Ok(format!("{summary}; {disturbances}; seed {seed}"))
    }
}

/// Stops origins, reloads and upgrades until the time is over; how often, in words.
#[expect(clippy::too_many_arguments, reason = "all sides of the storm, which it stirs")]
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
                // Both processes take connections meanwhile, and the old one ends those that it has kept.
                findings.replace();
                site.upgrade()?;
                findings.replace();
                upgrades += 1;
            }
        }
    }
    Ok(format!("{restarts} restarts, {reloads} reloads, {upgrades} upgrades"))
}
