//! The pure part of the ring under Miri, which finds what the compiler lets through: use after free, data freed twice.

use std::process::{Command, Stdio};

use anyhow::Result;
use sluice_testkit::tally::Tally;

use super::cargo;

pub(super) const NAME: &str = "miri";
/// Interpreted, a case takes some hundred times as long.
const CASES: &str = "8";

/// Named only: the interpreter needs a build of its own.
///
/// # Errors
/// When cargo cannot be run.
pub(super) fn test(tally: &mut Tally) -> Result<()> {
    tally.heading("under Miri");
    let found = Command::new("cargo").args(["+nightly", "miri", "--version"]).stdin(Stdio::null()).output();
    if !found.is_ok_and(|output| output.status.success()) {
        tally.skip(NAME, 1, "no Miri: rustup toolchain install nightly --component miri,rust-src");
        return Ok(());
    }
    cargo::interpret(NAME, &["--package", "sluice-ring", "--lib", "table"], CASES, tally)
}
