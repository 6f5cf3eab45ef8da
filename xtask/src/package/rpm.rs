//! The RPM package, by cargo-generate-rpm.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use sluice_testkit::ship::{self, Machine};
use sluice_testkit::workspace::{self, must};

use super::{succeed, tool};

const CARGO_GENERATE_RPM: &str = "0.21.1";

/// What must be in it.
const FILES: [&str; 6] = [
    "/usr/bin/sluice",
    "/etc/sluice/sluice.yaml",
    "/usr/lib/systemd/system/sluice.service",
    "/usr/share/man/man1/sluice.1.gz",
    "/usr/share/sluice/scripts/accept_queue.bt",
    "/etc/logrotate.d/sluice",
];

/// Gives what is packed from the source the time `epoch`. Later times become that in the package, and earlier ones, which
/// files have that were checked out before the last commit, would stay.
fn age_sources(epoch: &str) -> Result<()> {
    let folders = ["config", "docs", "scripts", "LICENSE", "README.md"];
    let mut list = Command::new("git");
    let listed = succeed(list.arg("ls-files").args(folders).current_dir(workspace::root()))?;
    let mut touch = Command::new("touch");
    touch.arg(format!("--date=@{epoch}")).args(listed.lines()).current_dir(workspace::root());
    must(&mut touch)
}

/// Makes it of `binary`, stripped, and looks into it.
///
/// # Errors
/// When it cannot be made, or something is not in it.
pub(super) fn build(binary: &Path, folder: &Path) -> Result<()> {
    let target = ship::target()?;
    // It takes the binary as it finds it.
    ship::strip(Machine::Native, binary, &target.join("release/sluice"))?;
    let name = format!("sluice-{}-1.{}.rpm", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let file = folder.join(&name);
    let epoch = ship::epoch().to_string();
    age_sources(&epoch)?;
    let mut build = Command::new(tool("cargo-generate-rpm", CARGO_GENERATE_RPM)?);
    build.args(["--package", "proxy/sluice", "--auto-req", "builtin", "--source-date", &epoch]);
    build.arg("--target-dir").arg(&target).arg("--output").arg(&file);
    must(build.current_dir(workspace::root()).stdin(Stdio::null()))?;
    let query = |flag: &str| succeed(Command::new("rpm").args(["-qp", flag]).arg(&file));
    let files = query("--list")?;
    for wanted in FILES {
        ensure!(files.lines().any(|line| line == wanted), "{wanted} is not in {name}");
    }
    let configured = query("--configfiles")?;
    ensure!(
        configured.contains("/etc/sluice/sluice.yaml"),
        "sluice.yaml is not marked as a configuration file: {configured}"
    );
    let scripts = query("--scripts")?;
    ensure!(scripts.contains("systemd-sysusers sluice.conf"), "the package creates no account:\n{scripts}");
    succeed(Command::new("rpm").args(["-K", "--nosignature"]).arg(&file)).context(name).map(drop)
}
