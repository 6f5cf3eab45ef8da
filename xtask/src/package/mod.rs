//! `cargo xtask package`: the Debian package, built from the release binary and looked into. Images are made by
//! `proxy/system`, which tries them, too.

mod check;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use sluice_testkit::workspace::{self, cargo, must, tools};

const CARGO_DEB: &str = "3.8.0";

/// Shells that completions are written for.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// How to build it.
#[derive(Args)]
pub(crate) struct Options {
    /// Take the debug binary, which is built in a tenth of the time: to try the package, not to give it to anyone.
    #[arg(long)]
    debug: bool,
    /// The container images as an OCI archive, in place of the Debian package.
    #[arg(long)]
    image: bool,
}

/// Builds the package, checks it, and says where it is.
///
/// # Errors
/// When something cannot be built or installed, or the package is not as it should be.
pub(crate) fn package(options: &Options) -> Result<()> {
    if options.image {
        let flags = options.debug.then(|| "--debug".to_owned());
        return crate::run::package("sluice-system", "image", flags.as_slice());
    }
    let cargo_deb = cargo_deb()?;
    let binary = if options.debug { debug_binary()? } else { workspace::release_binary()? };
    let beside = binary.parent().context("a binary lies in a folder")?;
    prepare(&binary, &beside.join("package"))?;
    let folder = workspace::scratch("package")?;
    let file = folder.join("sluice.deb");
    let mut build = Command::new(&cargo_deb);
    build.args(["--no-build", "--package", "sluice", "--output"]).arg(&file).current_dir(workspace::root());
    if options.debug {
        build.args(["--profile", "dev"]);
    }
    must(build.stdin(Stdio::null()))?;
    check::check(&file, &folder.join("root"))?;
    println!("package: {}", file.display());
    Ok(())
}

fn debug_binary() -> Result<PathBuf> {
    must(&mut cargo(["build", "--package", "sluice"]))?;
    Ok(workspace::target()?.join("debug").join("sluice"))
}

/// Has the binary write its manual pages and completions into `folder`, where the package's list of files finds them.
fn prepare(binary: &Path, folder: &Path) -> Result<()> {
    // Pages of commands that are no longer there would be packed as well.
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let pages = folder.join("man");
    must(Command::new(binary).arg("man").arg(&pages))?;
    // As Debian wants them; without name and time, so that the same page is the same file.
    let mut compress = Command::new("gzip");
    compress.args(["--best", "--no-name", "--recursive"]).arg(&pages);
    must(&mut compress)?;
    for shell in SHELLS {
        let output = Command::new(binary).args(["completions", shell]).output().context("completions")?;
        ensure!(output.status.success(), "completions for {shell}: {}", output.status);
        fs::write(folder.join(format!("sluice.{shell}")), output.stdout)?;
    }
    Ok(())
}

/// Finds cargo-deb below the target folder, or installs it there.
fn cargo_deb() -> Result<PathBuf> {
    let folder = tools()?.join(format!("cargo-deb-{CARGO_DEB}"));
    let program = folder.join("bin/cargo-deb");
    if !program.is_file() {
        let mut install = cargo(["install", "cargo-deb", "--version", CARGO_DEB, "--locked", "--root"]);
        must(install.arg(&folder).stdin(Stdio::null()))?;
    }
    Ok(program)
}
