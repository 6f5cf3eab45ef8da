//! `cargo xtask lint`: all checks that do not run the code.

use anyhow::Result;
use sluice_testkit::workspace::{cargo, must};

use crate::tidy;

/// Format, clippy, the features of the quick build, documentation, tidy. Stops at the first failure.
///
/// # Errors
/// One of them fails.
pub(crate) fn lint() -> Result<()> {
    step("fmt");
    must(&mut cargo(["fmt", "--all", "--check"]))?;
    step("clippy");
    must(&mut cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    // What `cargo xtask run` builds has other crates, which may need other types to be named.
    step("quick build");
    must(&mut cargo(["check", "--package", "sluice", "--no-default-features", "--features", "ring,trace"]))?;
    step("doc");
    must(cargo(["doc", "--no-deps", "--workspace"]).env("RUSTDOCFLAGS", "-Dwarnings"))?;
    step("tidy");
    tidy::tidy()
}

fn step(name: &str) {
    println!("== lint: {name}");
}
