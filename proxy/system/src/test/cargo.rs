//! `cargo test`, shown live, kept in a log, counted by its own result lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow};
use sluice_testkit::tally::Tally;
use sluice_testkit::workspace;

/// Runs `cargo test ARGS` in the environment `env` and adds its results to the tally under `name`.
///
/// # Errors
/// When cargo cannot start or its output cannot be stored. Failing tests are counted, not errors.
pub(super) fn test(name: &str, args: &[&str], env: &[(&str, &str)], tally: &mut Tally) -> Result<()> {
    let mut command = workspace::cargo(["test", "--no-fail-fast"]);
    command.args(args).envs(env.iter().copied());
    if let Some(filter) = tally.filter() {
        // Arguments after the dashes are for the tests themselves; there may be some already.
        if !args.contains(&"--") {
            command.arg("--");
        }
        command.arg(filter);
    }
    run(name, command, tally)
}

/// Runs all that `cargo test ARGS` selects, whatever the filter.
///
/// # Errors
/// As [`test()`].
pub(super) fn whole(name: &str, args: &[&str], env: &[(&str, &str)], tally: &mut Tally) -> Result<()> {
    let mut command = workspace::cargo(["test", "--no-fail-fast"]);
    command.args(args).envs(env.iter().copied());
    run(name, command, tally)
}

/// Runs `cargo miri test ARGS` with this many cases of each property.
///
/// # Errors
/// As [`test()`].
pub(super) fn interpret(name: &str, args: &[&str], cases: &str, tally: &mut Tally) -> Result<()> {
    // Not through the toolchain's own cargo: rustup selects the requested toolchain.
    let mut command = Command::new("cargo");
    command.current_dir(workspace::root()).args(["+nightly", "miri", "test", "--no-fail-fast"]).args(args);
    command.arg("--target-dir").arg(workspace::scratch("miri")?);
    // Properties read the environment and the clock.
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", cases);
    for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    run(name, command, tally)
}

/// Shows its output, stores it and counts its results.
fn run(name: &str, mut command: Command, tally: &mut Tally) -> Result<()> {
    println!("$ {} (after {} s)", workspace::describe(&command), tally.elapsed_secs());
    let log = workspace::scratch("logs")?.join(format!("test-{name}.log"));
    let mut log = File::create(&log).with_context(|| log.display().to_string())?;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cargo test")?;
    let before = tally.failed();
    let output = child.stdout.take().expect("stdout is piped above");
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        writeln!(log, "{line}")?;
        tally.read_line(name, &line);
    }
    let status = child.wait()?;
    // A failed build, or a binary that crashes, prints no result line.
    if !status.success() && tally.failed() == before {
        tally.settle(&format!("cargo test ({name})"), Err(anyhow!("ended without a result ({status})")));
    }
    Ok(())
}
