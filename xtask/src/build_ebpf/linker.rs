//! bpf-linker, built into the target folder with an LLVM that can read the compiler's output.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use sluice_testkit::workspace::{cargo, must, tools};

use super::toolchain::Toolchain;

const VERSION: &str = "0.13.0";

/// Finds bpf-linker, or installs it.
///
/// # Errors
/// No rustup toolchain has the required LLVM, or the installation fails.
pub(super) fn prepare(toolchain: &Toolchain) -> Result<PathBuf> {
    let major = toolchain.llvm();
    // One per LLVM: bitcode of another major version may not be readable, or be misread.
    let folder = tools()?.join(format!("bpf-linker-{VERSION}-llvm-{major}"));
    let program = folder.join("bin/bpf-linker");
    if program.is_file() {
        return Ok(program);
    }
    let library = library(major)?;
    let prefix = folder.join("llvm");
    link_library(&library, &prefix)?;
    let feature = format!("llvm-{major}");
    let mut install = cargo(["install", "bpf-linker", "--version", VERSION, "--locked"]);
    install
        .args(["--no-default-features", "--features", &feature, "--root"])
        .arg(&folder)
        .env("LLVM_PREFIX", &prefix)
        .stdin(Stdio::null());
    must(&mut install)?;
    ensure!(program.is_file(), "bpf-linker was not installed");
    Ok(program)
}

/// The shared LLVM library of this major version in any rustup toolchain.
fn library(major: &str) -> Result<PathBuf> {
    let listed =
        Command::new("rustup").args(["toolchain", "list", "--verbose"]).stdin(Stdio::null()).output();
    let listed = listed.context("rustup toolchain list")?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let sysroots = text.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    let wanted = format!("libLLVM.so.{major}.");
    for sysroot in sysroots {
        for entry in fs::read_dir(sysroot.join("lib")).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&wanted) {
                return Ok(entry.path());
            }
        }
    }
    anyhow::bail!("no rustup toolchain has LLVM {major}: install one whose rustc uses it")
}

/// Creates a folder like an LLVM installation: the build looks for `libLLVM.so`, and the running linker for the
/// versioned name.
fn link_library(library: &Path, prefix: &Path) -> Result<()> {
    let folder = prefix.join("lib");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let name = library.file_name().context("a library without a name")?;
    for link in [folder.join("libLLVM.so"), folder.join(name)] {
        if fs::symlink_metadata(&link).is_err() {
            symlink(library, &link).with_context(|| link.display().to_string())?;
        }
    }
    Ok(())
}
