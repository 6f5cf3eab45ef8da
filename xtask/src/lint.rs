//! `cargo xtask lint`: everything that judges the text without running it.

use anyhow::Result;
use sluice_testkit::workspace::{cargo, must};

use crate::tidy;

/// Format, clippy, documentation, tidy; stops at the first that fails.
///
/// # Errors
/// When one of them does.
pub(crate) fn lint() -> Result<()> {
    step("fmt");
    must(&mut cargo(["fmt", "--all", "--check"]))?;
    step("clippy");
    must(&mut cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    step("doc");
    must(cargo(["doc", "--no-deps", "--workspace"]).env("RUSTDOCFLAGS", "-Dwarnings"))?;
    step("tidy");
    tidy::tidy()
}

fn step(name: &str) {
    println!("== lint: {name}");
}
