//! Commands that replace this process by another program: sluice, or a package of the workspace.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use sluice_testkit::workspace::{self, cargo};

/// Builds, then executes `sluice run ARGS` in place of this process, so that Ctrl-C and the exit code are sluice's.
///
/// # Errors
/// The build fails or the binary cannot be executed; otherwise it does not return.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let config = workspace::root().join("config").join("sluice.yaml");
    become_sluice(|command| match args {
        [] => command.args(["run", "--config"]).arg(config),
        _ => command.arg("run").args(args),
    })
}

/// Builds, then executes `sluice doctor ARGS` in place of this process.
///
/// # Errors
/// The build fails or the binary cannot be executed; otherwise it does not return.
pub(crate) fn doctor(args: &[String]) -> Result<()> {
    become_sluice(|command| command.arg("doctor").args(args))
}

/// Builds, then executes `sluice trace ARGS` in place of this process.
///
/// # Errors
/// When the build fails or the binary cannot be started.
pub(crate) fn trace(args: &[String]) -> Result<()> {
    become_sluice(|command| command.arg("trace").args(args))
}

/// Executes the program of a workspace package, with a command and its arguments, in place of this process.
///
/// # Errors
/// cargo cannot be executed; otherwise it does not return.
pub(crate) fn package(name: &str, command: &str, args: &[String]) -> Result<()> {
    let error = cargo(["run", "--quiet", "--package", name, "--", command]).args(args).exec();
    Err(error).context("cargo")
}

fn become_sluice(give: impl FnOnce(&mut Command) -> &mut Command) -> Result<()> {
    let binary = workspace::quick_binary()?;
    eprintln!("this is a quick build, do not measure it: `cargo build --release` builds the fast binary");
    let error = give(&mut Command::new(&binary)).exec();
    Err(error).with_context(|| binary.display().to_string())
}
