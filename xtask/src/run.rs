//! Commands that another program takes over: sluice itself, or a package of the workspace.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use sluice_testkit::workspace::{self, cargo};

/// Builds, then becomes `sluice run ARGS`, so that Ctrl-C and the exit code are sluice's own.
///
/// # Errors
/// When the build fails or the binary cannot be executed; otherwise it does not return.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let config = workspace::root().join("config").join("sluice.yaml");
    become_sluice(|command| match args {
        [] => command.args(["run", "--config"]).arg(config),
        _ => command.arg("run").args(args),
    })
}

/// Builds, then becomes `sluice doctor ARGS`.
///
/// # Errors
/// When the build fails or the binary cannot be executed; otherwise it does not return.
pub(crate) fn doctor(args: &[String]) -> Result<()> {
    become_sluice(|command| command.arg("doctor").args(args))
}

/// Becomes the program of a package of the workspace, with a command and its arguments.
///
/// # Errors
/// When cargo cannot be executed; otherwise it does not return.
pub(crate) fn package(name: &str, command: &str, args: &[String]) -> Result<()> {
    let error = cargo(["run", "--quiet", "--package", name, "--", command]).args(args).exec();
    Err(error).context("cargo")
}

fn become_sluice(give: impl FnOnce(&mut Command) -> &mut Command) -> Result<()> {
    let binary = workspace::quick_binary()?;
    eprintln!("built quickly, and not to be measured: `cargo build --release` makes the fast one");
    let error = give(&mut Command::new(&binary)).exec();
    Err(error).with_context(|| binary.display().to_string())
}
