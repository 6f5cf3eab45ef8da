//! `cargo xtask lint`: all checks that do not run the code.

use anyhow::Result;
use sluice_testkit::workspace::{cargo, must};

use crate::tidy;

/// Format, clippy, documentation, tidy. Stops at the first failure.
///
/// # Errors
/// One of them fails.
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
