//! Real servers behind the release binary, each with its example configuration, tested with real clients.

mod bypass;
mod checks;
mod clients;
mod curl;
mod example;
mod falcon;
mod go;
mod network;
mod nginx;
mod node;
mod puma;
mod rig;
mod slow;
mod storm;
mod streams;
mod uploads;
mod uvicorn;
mod variant;
mod websocket;
mod wire;

use std::path::Path;

use anyhow::{Result, anyhow};
pub(crate) use bypass::obstacle as bypass_obstacle;
use rig::{Place, Rig};
use sluice_testkit::packages::Tools;
use sluice_testkit::pinned;
use sluice_testkit::process::Process;
use sluice_testkit::tally::Tally;
use variant::{Ground, HOST, JOINED, Variant};

/// A kind of origin, and the checks with sluice in front of it.
///
/// Many fields: one for each way in which applications differ.
struct App {
    name: &'static str,
    /// File in `config/examples`.
    example: &'static str,
    /// Folder in `bench/origins`.
    sources: &'static str,
    /// The Host that the example routes to its cluster.
    host: &'static str,
    /// The prefix that the example strips from paths.
    prefix: &'static str,
    /// A path that responds with a line of text.
    path: &'static str,
    /// That line.
    hello: &'static str,
    /// A path that responds with 1 MB or more.
    large: &'static str,
    /// Paths whose responses are compared, joined and copied.
    compared: &'static [&'static str],
    /// Paths whose responses clients read slowly, with and without direct return; an empty list skips this.
    slow: &'static [&'static str],
    programs: &'static [&'static str],
    /// The tool of `bench` that it needs.
    tool: Option<&'static str>,
    /// Starts the origin; returns when it listens.
    start: fn(&Place) -> Result<Process>,
    checks: &'static [&'static [Check]],
}

/// A check and its name within the app.
type Check = (&'static str, fn(&Rig) -> Result<String>);

const APPS: &[App] = &[puma::APP, go::APP, nginx::APP, uvicorn::APP, node::APP, falcon::APP];

/// Paths of the origins with generated bodies: sizes below and above the limit of unread joined bytes.
const COMPARED: &[&str] = &["/", "/no-such-path", "/bytes?n=1000", "/bytes?n=60000", "/bytes?n=70000"];
/// What slow clients request from the same origins. The last one does not fit into the send queue of one client.
const SLOW: &[&str] = &[
    "/bytes?n=65536",
    "/bytes?n=200000",
    "/bytes?n=1048576",
    "/bytes?n=65536",
    "/bytes?n=200000",
    "/bytes?n=1048576",
    "/bytes?n=65536",
    "/bytes?n=4000000",
];
const LARGE: &str = "/bytes?n=1048576";

/// `kernel.bypass` if connections must be joined.
pub(crate) const REQUIRED: &str = "required";

/// Shared by all apps of a run.
struct Run<'a> {
    binary: &'a Path,
    /// Whether the long runs are requested.
    big: bool,
    /// `kernel.bypass`.
    bypass: &'a str,
}

/// The last check of every app: it stops sluice.
const STOPS: &str = "stops_on_sigterm";

/// The names of all checks of the host tier.
pub(crate) fn names() -> impl Iterator<Item = String> {
    APPS.iter().flat_map(|app| app.names(&HOST))
}

/// The names of all checks of the kernel tier.
pub(crate) fn joined_names() -> impl Iterator<Item = String> {
    JOINED.iter().flat_map(|variant| APPS.iter().flat_map(|app| app.names(variant)))
}

/// Runs every requested check with copied connections; starts an app only if one of its checks is requested.
///
/// # Errors
/// When scratch folders cannot be created. Failed checks are counted, not errors.
pub(crate) fn run(binary: &Path, big: bool, tools: &Tools, tally: &mut Tally) -> Result<()> {
    run_on(&HOST, &Run { binary, big, bypass: "off" }, tools, tally)
}

/// The same with `bypass` as `kernel.bypass` and the origin in several places. Needs root, and eBPF if required.
///
/// # Errors
/// As for `run`.
pub(crate) fn run_joined(binary: &Path, bypass: &str, tools: &Tools, tally: &mut Tally) -> Result<()> {
    for variant in JOINED {
        run_on(variant, &Run { binary, big: false, bypass }, tools, tally)?;
    }
    Ok(())
}

fn run_on(variant: &'static Variant, run: &Run, tools: &Tools, tally: &mut Tally) -> Result<()> {
    let wanted: Vec<(&App, usize)> = APPS
        .iter()
        .map(|app| (app, app.names(variant).filter(|name| tally.wants(name)).count()))
        .filter(|(_, count)| *count > 0)
        .collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let ground = match Ground::prepare(variant, tools) {
        Ok(ground) => ground,
        Err(reason) => {
            let count = wanted.iter().map(|(_, count)| count).sum();
            tally.skip(variant.name, count, &format!("{reason:#}"));
            return Ok(());
        }
    };
    for (app, count) in wanted {
        let lack = tools.lack(app.programs).or_else(|| {
            let tool = app.tool?;
            Some(format!("{tool} is not available: {:#}", pinned::tool(tool).err()?))
        });
        match lack {
            Some(lack) => tally.skip(&format!("{}::{}", variant.name, app.name), count, &lack),
            None => app.run(variant, &ground, run, tally),
        }
    }
    Ok(())
}

impl App {
    /// The checks of this variant, except the last one.
    fn checks(&self, variant: &Variant) -> impl Iterator<Item = &'static Check> {
        let wanted = variant.wants;
        let own = self.checks.iter().flat_map(|checks| checks.iter());
        let own = own.filter(move |(name, _)| wanted(name));
        let slow = if variant.joined && !self.slow.is_empty() { slow::CHECKS } else { &[] };
        let slow = slow.iter().filter(move |(name, _)| wanted(name));
        own.chain(slow).chain(if variant.joined { bypass::CHECKS } else { &[] })
    }

    fn names(&self, variant: &'static Variant) -> impl Iterator<Item = String> {
        let own = self.checks(variant).map(|(name, _)| *name);
        own.chain([STOPS]).map(|name| format!("{}::{}::{name}", variant.name, self.name))
    }

    fn run(&'static self, variant: &'static Variant, ground: &Ground, run: &Run, tally: &mut Tally) {
        let prefix = format!("{}::{}", variant.name, self.name);
        let started = Rig::start(self, variant, ground, run);
        let mut rig = match started {
            Ok(rig) => rig,
            Err(error) => {
                println!("{error:#}");
                // All checks that cannot run now have failed, not only one.
                for name in self.names(variant) {
                    tally.check(&name, || Err(anyhow!("{} was not started, see above", self.name)));
                }
                return;
            }
        };
        for (name, check) in self.checks(variant) {
            tally.check(&format!("{prefix}::{name}"), || {
                let tails = || format!("{}\n{}", rig.origin.tail(), rig.sluice.tail());
                check(&rig).map_err(|error| anyhow!("{error:#}\n{}", tails()))
            });
        }
        tally.check(&format!("{prefix}::{STOPS}"), || checks::stops_on_sigterm(&mut rig));
    }
}
