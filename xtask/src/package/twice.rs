//! Whether a second build, in another folder, gives the same bytes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sluice_testkit::workspace::{self, must};

use super::SUMS;

/// Clones the last commit to a place of its own, packages it there, and holds the sums of both against each other.
///
/// # Errors
/// When there is something that is not committed, the second build fails, or a file differs.
pub(super) fn compare(folder: &Path) -> Result<()> {
    let mut status = Command::new("git");
    let changes = super::succeed(status.args(["status", "--porcelain"]).current_dir(workspace::root()))?;
    ensure!(changes.is_empty(), "the second build uses the last commit; uncommitted changes:\n{changes}");
    let elsewhere = std::env::temp_dir().join(format!("sluice-second-build-{}", std::process::id()));
    let outcome = second(&elsewhere).and_then(|sums| {
        let first = fs::read_to_string(folder.join(SUMS))?;
        let differ: Vec<&str> =
            first.lines().filter(|line| !sums.lines().any(|other| other == *line)).collect();
        ensure!(differ.is_empty(), "files that differ in the second build:\n{}", differ.join("\n"));
        println!("the second build produced the same {} files", first.lines().count());
        Ok(())
    });
    // What cannot be removed is only space.
    let _ = fs::remove_dir_all(&elsewhere);
    outcome
}

/// The sums of the second build.
fn second(folder: &Path) -> Result<String> {
    must(Command::new("git").args(["clone", "--quiet"]).arg(workspace::root()).arg(folder))?;
    let mut build = Command::new("cargo");
    build.args(["xtask", "package"]).current_dir(folder);
    for variable in ["CARGO_TARGET_DIR", "CARGO_MANIFEST_DIR", "CARGO"] {
        build.env_remove(variable);
    }
    // What cargo installs for it need not be built again.
    let tools = workspace::tools()?;
    let target = folder.join("target");
    fs::create_dir_all(&target)?;
    std::os::unix::fs::symlink(&tools, target.join("tools"))?;
    must(&mut build)?;
    let sums = target.join("xtask/package").join(SUMS);
    fs::read_to_string(&sums).with_context(|| sums.display().to_string())
}
