//! `cargo xtask run`: the release binary, in our place.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace;

/// Builds, then becomes `sluice run ARGS`, so that Ctrl-C and the exit code are sluice's own.
///
/// # Errors
/// When the build fails or the binary cannot be executed; otherwise it does not return.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let binary = workspace::release_binary()?;
    let mut command = Command::new(&binary);
    command.arg("run");
    if args.is_empty() {
        let config = workspace::root().join("config").join("sluice.yaml");
        command.arg("--config").arg(config);
    } else {
        command.args(args);
    }
    let error = command.exec();
    Err(error).with_context(|| binary.display().to_string())
}
