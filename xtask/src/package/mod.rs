//! `cargo xtask package`: what is given to users, built and looked into. Images are made by `proxy/system`, which tries
//! them, too.

mod archive;
mod deb;
mod look;
mod rpm;
mod sbom;
mod twice;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use sluice_testkit::arm64;
use sluice_testkit::packages;
use sluice_testkit::process::find_program;
use sluice_testkit::ship::{self, Linking, Machine};
use sluice_testkit::workspace::{self, cargo, must, tools};

/// Shells that completions are written for.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Of everything else in the folder.
const SUMS: &str = "SHA256SUMS";

/// How to build it.
#[derive(Args)]
pub(crate) struct Options {
    /// The Debian package alone, from the debug binary, which is built in a tenth of the time: to try the package, not to
    /// give it to anyone.
    #[arg(long, conflicts_with = "twice")]
    debug: bool,
    /// The container images as an OCI archive, in place of packages.
    #[arg(long)]
    image: bool,
    /// For arm64 in place of this machine's processor: .deb, its symbols, and the archive with a static binary.
    #[arg(long, conflicts_with_all = ["debug", "image", "twice"])]
    arm64: bool,
    /// Build a second time, in a copy of the source elsewhere, and compare every byte.
    #[arg(long, conflicts_with = "image")]
    twice: bool,
}

/// Builds what is asked for, checks it, and says where it is.
///
/// # Errors
/// When something cannot be built or installed, or is not as it should be.
pub(crate) fn package(options: &Options) -> Result<()> {
    if options.image {
        let flags = options.debug.then(|| "--debug".to_owned());
        return crate::run::package("sluice-system", "image", flags.as_slice());
    }
    let folder = workspace::scratch("package")?;
    if options.debug {
        let file = deb::from_debug_binary(&folder)?;
        println!("package: {}", file.display());
        return Ok(());
    }
    clear(&folder)?;
    if options.arm64 {
        for_arm64(&folder)?;
    } else {
        release(&folder)?;
    }
    if options.twice {
        twice::compare(&folder)?;
    }
    for entry in fs::read_to_string(folder.join(SUMS))?.lines() {
        println!("{entry}");
    }
    println!("packages: {}", folder.display());
    Ok(())
}

/// Everything, from one commit.
fn release(folder: &Path) -> Result<()> {
    need(&[("strip", "binutils"), ("rpm", "rpm"), ("lintian", "lintian"), ("gzip", "gzip")])?;
    // The static one first: what a package of a distribution is made of lies where its tools look.
    let linked = ship::binary(Machine::Native, Linking::Static)?;
    let stripped = workspace::scratch("static")?.join("sluice");
    ship::strip(Machine::Native, &linked, &stripped)?;
    archive::build(Machine::Native, &stripped, &stripped, folder)?;

    let binary = ship::binary(Machine::Native, Linking::Dynamic)?;
    write_pages(&binary, &Machine::Native.folder()?.join("package"))?;
    deb::build(Machine::Native, folder)?;
    rpm::build(&binary, folder)?;
    sbom::write(folder)?;
    sum(folder)
}

/// The packages whose tools build for another architecture.
fn for_arm64(folder: &Path) -> Result<()> {
    ensure!(!arm64::IS_NATIVE, "this machine is arm64: package without --arm64");
    need(&[("lintian", "lintian"), ("gzip", "gzip")])?;
    arm64::prepare()?;
    // Manual pages are the same for each architecture, and this binary runs here.
    must(&mut cargo(["build", "--package", "sluice"]))?;
    let author = workspace::target()?.join("debug/sluice");

    let linked = ship::binary(Machine::Arm64, Linking::Static)?;
    let stripped = workspace::scratch("static-arm64")?.join("sluice");
    ship::strip(Machine::Arm64, &linked, &stripped)?;
    archive::build(Machine::Arm64, &stripped, &author, folder)?;

    ship::binary(Machine::Arm64, Linking::Dynamic)?;
    write_pages(&author, &Machine::Arm64.folder()?.join("package"))?;
    deb::build(Machine::Arm64, folder)?;
    sum(folder)
}

fn clear(folder: &Path) -> Result<()> {
    fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

/// Has the binary write its manual pages and completions into `folder`.
fn write_pages(binary: &Path, folder: &Path) -> Result<()> {
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

/// Writes the sums of all files in `folder`, for `sha256sum --check`.
fn sum(folder: &Path) -> Result<()> {
    let mut names: Vec<_> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    names.sort();
    let output = Command::new("sha256sum").args(&names).current_dir(folder).output().context("sha256sum")?;
    ensure!(output.status.success(), "sha256sum: {}", output.status);
    fs::write(folder.join(SUMS), output.stdout).context(SUMS)
}

/// Installs missing programs, each from its Debian package.
fn need(programs: &[(&str, &'static str)]) -> Result<()> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| find_program(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() { Ok(()) } else { packages::install(&missing) }
}

/// A program that cargo installs: found below the target folder, or installed there.
fn tool(name: &str, version: &str) -> Result<PathBuf> {
    let folder = tools()?.join(format!("{name}-{version}"));
    let program = folder.join("bin").join(name);
    if !program.is_file() {
        let mut install = cargo(["install", name, "--version", version, "--locked", "--root"]);
        must(install.arg(&folder).stdin(Stdio::null()))?;
    }
    Ok(program)
}

/// What a command prints, if it succeeds.
fn succeed(command: &mut Command) -> Result<String> {
    let words = workspace::describe(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| words.clone())?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{words}`: {}: {said}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
