//! Binaries as they are shipped: the same bytes wherever they are built, by whom and when.
//!
//! A build names paths of its machine in panics and, in C, in error reports; here they are replaced. Everything is
//! built in a target folder of its own, for other flags mean another build of every crate.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::arm64;
use crate::workspace::{self, cargo, must};

/// How the binary finds the C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linking {
    /// As a distribution wants it.
    Dynamic,
    /// Needs nothing of its host.
    Static,
}

impl Linking {
    fn folder(self) -> &'static str {
        match self {
            Self::Dynamic => "dynamic",
            Self::Static => "static",
        }
    }
}

/// The processor that a binary is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// This machine's.
    Native,
    /// Arm64, on a machine of another architecture; [`arm64::prepare`] comes first.
    Arm64,
}

impl Machine {
    /// The target for cargo, unless it is cargo's default.
    pub fn triple(self) -> Option<&'static str> {
        match self {
            Self::Native => None,
            Self::Arm64 => Some(arm64::TRIPLE),
        }
    }

    /// Its name in the names of archives.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => std::env::consts::ARCH,
            Self::Arm64 => "aarch64",
        }
    }

    /// The folder of what is shipped for it, below [`target`].
    ///
    /// # Errors
    /// As [`target`].
    pub fn folder(self) -> Result<PathBuf> {
        let target = target()?;
        Ok(self.triple().map_or_else(|| target.clone(), |triple| target.join(triple)).join("release"))
    }

    /// One of binutils.
    fn tool(self, name: &str) -> Command {
        match self {
            Self::Native => Command::new(name),
            Self::Arm64 => Command::new(format!("{}{name}", arm64::TOOLS)),
        }
    }
}

/// The target folder of what is shipped.
///
/// # Errors
/// When the usual one cannot be found.
pub fn target() -> Result<PathBuf> {
    Ok(workspace::target()?.join("ship"))
}

/// Builds the release binary, symbols and all, and returns where it is. The next one replaces it.
///
/// # Errors
/// When the build fails.
pub fn binary(machine: Machine, linking: Linking) -> Result<PathBuf> {
    let target = target()?;
    let mut build = cargo(["rustc", "--locked", "--release", "--package", "sluice", "--bin", "sluice"]);
    build.arg("--target-dir").arg(&target).stdin(Stdio::null());
    make_reproducible(&mut build, &target)?;
    if let Some(triple) = machine.triple() {
        build.args(["--target", triple]).envs(arm64::variables());
    }
    if linking == Linking::Static {
        build.args(["--", "-C", "target-feature=+crt-static"]);
    }
    must(&mut build)?;
    let built = machine.folder()?;
    let folder = built.join(linking.folder());
    fs::create_dir_all(&folder)?;
    let binary = folder.join("sluice");
    fs::copy(built.join("sluice"), &binary).with_context(|| binary.display().to_string())?;
    Ok(binary)
}

/// Copies `binary` to `to` without its symbols.
///
/// # Errors
/// When strip fails.
pub fn strip(machine: Machine, binary: &Path, to: &Path) -> Result<()> {
    must(machine.tool("strip").arg("-o").arg(to).arg(binary))
}

/// Seconds since 1970 of the last commit, which everything that is shipped carries as its time; 0 without git.
pub fn epoch() -> u64 {
    let mut git = Command::new("git");
    let output = git.args(["log", "-1", "--format=%ct"]).current_dir(workspace::root()).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// Replaces the paths of this machine in what `command` compiles.
fn make_reproducible(command: &mut Command, target: &Path) -> Result<()> {
    let renamed = renamed(target)?;
    let join = |prefix: &str, separator: &str| {
        let flags: Vec<String> =
            renamed.iter().map(|(from, to)| format!("{prefix}{}={to}", from.display())).collect();
        OsString::from(flags.join(separator))
    };
    command.env("CARGO_ENCODED_RUSTFLAGS", join("--remap-path-prefix=", "\u{1f}"));
    command.env("CFLAGS", join("-ffile-prefix-map=", " "));
    command.env("SOURCE_DATE_EPOCH", epoch().to_string());
    Ok(())
}

/// Folders and what they are called instead; of two that match, the later one counts.
fn renamed(target: &Path) -> Result<Vec<(PathBuf, &'static str)>> {
    let home = match std::env::var_os("CARGO_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cargo"),
    };
    let mut renamed = vec![(workspace::root(), "/usr/src/sluice"), (home.clone(), "/usr/src/cargo")];
    // These folders are named after where the crates came from, which makes no difference.
    for sources in fs::read_dir(home.join("registry/src")).into_iter().flatten() {
        renamed.push((sources?.path(), "/usr/src/crates"));
    }
    renamed.push((target.to_path_buf(), "/usr/src/target"));
    Ok(renamed)
}
