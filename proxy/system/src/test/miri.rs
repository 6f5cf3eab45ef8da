//! The pure part of the ring under Miri, which finds what the compiler misses: use after free, double free.

use std::process::{Command, Stdio};

use anyhow::Result;
use sluice_testkit::tally::Tally;

use super::cargo;

pub(super) const NAME: &str = "miri";
/// Interpreted, a case takes a few hundred times as long.
const CASES: &str = "8";

/// Runs only when named: the interpreter needs a separate build.
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
