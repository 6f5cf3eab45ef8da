//! The Debian package and the one with its symbols, by cargo-deb; judged by lintian.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use sluice_testkit::arm64;
use sluice_testkit::ship::{self, Machine};
use sluice_testkit::workspace::{self, cargo, must};

use super::{look, succeed, tool, write_pages};

const CARGO_DEB: &str = "3.8.0";

/// Makes both packages from what lies in the target folder of releases.
///
/// # Errors
/// When a package cannot be made, or is not as it should be.
pub(super) fn build(machine: Machine, folder: &Path) -> Result<()> {
    let mut build = cargo_deb(&["--dbgsym", "--compress-debug-symbols=zlib"])?;
    if let Some(triple) = machine.triple() {
        build.args(["--target", triple]).envs(arm64::variables());
    }
    build.arg("--output").arg(folder).env("CARGO_TARGET_DIR", ship::target()?);
    must(build.env("SOURCE_DATE_EPOCH", ship::epoch().to_string()))?;
    let packages = files(folder)?;
    let [package] = packages.as_slice() else { anyhow::bail!("one package was expected: {packages:?}") };
    look::look(machine, package, &workspace::scratch("root")?)?;
    lintian(package)
}

/// The package alone, from the debug binary.
///
/// # Errors
/// As for [`build`].
pub(super) fn from_debug_binary(folder: &Path) -> Result<PathBuf> {
    must(&mut cargo(["build", "--package", "sluice"]))?;
    let beside = workspace::target()?.join("debug");
    write_pages(&beside.join("sluice"), &beside.join("package"))?;
    let file = folder.join("sluice.deb");
    let mut build = cargo_deb(&["--profile", "dev"])?;
    must(build.arg("--output").arg(&file))?;
    look::look(Machine::Native, &file, &workspace::scratch("root")?)?;
    Ok(file)
}

fn cargo_deb(flags: &[&str]) -> Result<Command> {
    let mut build = Command::new(tool("cargo-deb", CARGO_DEB)?);
    build.args(["--no-build", "--package", "sluice"]).args(flags);
    build.current_dir(workspace::root()).stdin(Stdio::null());
    Ok(build)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Errors end the build; what it warns of is shown.
fn lintian(package: &Path) -> Result<()> {
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error"]).arg(package);
    let said = succeed(&mut lintian)?;
    print!("{said}");
    ensure!(!said.lines().any(|line| line.starts_with("E: ")), "lintian has found errors");
    Ok(())
}
