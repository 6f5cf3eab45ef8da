//! Real servers behind the release binary, each from its example configuration, driven by real clients.

mod checks;
mod curl;
mod example;
mod go;
mod nginx;
mod puma;
mod rig;
mod storm;
mod websocket;
mod wire;

use std::path::Path;

use anyhow::{Result, anyhow};

use crate::process::Process;
use crate::test::{Tally, Tools};
pub(crate) use nginx::temp_paths;
use rig::{Place, Rig};

/// One kind of origin and what is checked through sluice in front of it.
struct App {
    name: &'static str,
    /// File in `config/examples`.
    example: &'static str,
    /// The Host that the example routes to its cluster.
    host: &'static str,
    programs: &'static [&'static str],
    /// Starts the origin; returns when it listens.
    start: fn(&Place) -> Result<Process>,
    checks: &'static [Check],
}

/// A check and its name within the app.
type Check = (&'static str, fn(&Rig) -> Result<String>);

const APPS: &[App] = &[puma::APP, go::APP, nginx::APP];

/// The last check of every app: it ends sluice.
const STOPS: &str = "stops_on_sigterm";

/// The names of all checks.
pub(crate) fn names() -> impl Iterator<Item = String> {
    APPS.iter().flat_map(|app| app.names())
}

/// Runs every check that the tally wants; starts an app only if one of its checks is.
///
/// # Errors
/// When scratch folders cannot be made. What a check finds is counted, not an error.
pub(crate) fn run(binary: &Path, big: bool, tools: &Tools, tally: &mut Tally) -> Result<()> {
    for app in APPS {
        let count = app.names().filter(|name| tally.wants(name)).count();
        if count == 0 {
            continue;
        }
        if let Some(lack) = tools.lack(app.programs) {
            tally.skip(&format!("apps::{}", app.name), count, &lack);
            continue;
        }
        app.run(binary, big, tally)?;
    }
    Ok(())
}

impl App {
    fn names(&self) -> impl Iterator<Item = String> {
        let own = self.checks.iter().map(|(name, _)| *name);
        own.chain([STOPS]).map(|name| format!("apps::{}::{name}", self.name))
    }

    fn run(&self, binary: &Path, big: bool, tally: &mut Tally) -> Result<()> {
        let started = Rig::start(self, binary, big);
        let mut rig = match started {
            Ok(rig) => rig,
            Err(error) => {
                println!("{error:#}");
                // Every check that now cannot run has failed, not only one.
                for name in self.names() {
                    tally.check(&name, || Err(anyhow!("{} was not started, see above", self.name)));
                }
                return Ok(());
            }
        };
        for (name, check) in self.checks {
            let name = format!("apps::{}::{name}", self.name);
            tally.check(&name, || {
                let tails = || format!("{}\n{}", rig.origin.tail(), rig.sluice.tail());
                check(&rig).map_err(|error| anyhow!("{error:#}\n{}", tails()))
            });
        }
        tally.check(&format!("apps::{}::{STOPS}", self.name), || checks::stops_on_sigterm(&mut rig));
        Ok(())
    }
}
