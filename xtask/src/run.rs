//! `cargo xtask run` and `doctor`: the release binary, in our place.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace;

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

fn become_sluice(give: impl FnOnce(&mut Command) -> &mut Command) -> Result<()> {
    let binary = workspace::release_binary()?;
    let error = give(&mut Command::new(&binary)).exec();
    Err(error).with_context(|| binary.display().to_string())
}
