//! The pure part of the ring under Miri, which finds what the compiler lets through: use after free, data freed twice.

use std::process::{Command, Stdio};

use anyhow::Result;

use super::{Tally, cargo};

const NAME: &str = "miri";
/// Interpreted, a case takes some hundred times as long.
const CASES: &str = "8";

/// Named only: the interpreter needs the whole crate built once more, in some minutes.
pub(super) fn test(tally: &mut Tally) -> Result<()> {
    if tally.filter() != Some(NAME) {
        if tally.wants(NAME) {
            tally.skip(NAME, 1, "a build of its own; run by name: cargo xtask test miri");
        }
        return Ok(());
    }
    tally.heading("under Miri");
    let found = Command::new("cargo").args(["+nightly", "miri", "--version"]).stdin(Stdio::null()).output();
    if !found.is_ok_and(|output| output.status.success()) {
        tally.skip(NAME, 1, "no Miri: rustup toolchain install nightly --component miri,rust-src");
        return Ok(());
    }
    cargo::interpret(NAME, &["--package", "sluice", "--lib", "ring::table"], CASES, tally)
}
