//! `cargo xtask docs`: the book of `docs/`, its reference renewed from the program.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;
use sluice_testkit::workspace::{self, cargo, must};

const MDBOOK: &str = "0.5.4";

/// Renews `docs/reference`, then builds the book into `target/book`. Links and blocks of code are checked by
/// `cargo xtask lint` and the tests.
///
/// # Errors
/// When something cannot be built.
pub(crate) fn docs() -> Result<()> {
    let binary = workspace::quick_binary()?;
    let root = workspace::root();
    must(Command::new(binary).arg("reference").arg(root.join("docs/reference")))?;
    must(Command::new(mdbook()?).arg("build").arg(root.join("docs")).stdin(Stdio::null()))?;
    println!("book: {}", workspace::target()?.join("book/index.html").display());
    Ok(())
}

fn mdbook() -> Result<PathBuf> {
    let folder = workspace::tools()?.join(format!("mdbook-{MDBOOK}"));
    let program = folder.join("bin/mdbook");
    if !program.is_file() {
        let mut install =
            cargo(["install", "mdbook", "--version", MDBOOK, "--locked", "--no-default-features"]);
        must(install.args(["--features", "search", "--root"]).arg(&folder).stdin(Stdio::null()))?;
    }
    Ok(program)
}
