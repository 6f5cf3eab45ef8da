//! Which compiler builds for BPF: one that has the source of `core`, for no target of BPF comes with it built.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::geteuid;
use sluice_testkit::process::find_program;
use sluice_testkit::{packages, workspace};

/// Debian's compiler for web browsers, newer than its `rustc`, and the source that belongs to it.
const DEBIAN_PACKAGES: &[&str] = &["rustc-web", "rust-web-src"];
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_SOURCE: &str = "rust-web-src";

/// A compiler and how cargo is made to use it.
pub(super) struct Toolchain {
    kind: Kind,
    version: String,
    llvm: String,
    source: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Rustup's nightly with its component `rust-src`.
    Nightly,
    /// Debian's, told by `RUSTC_BOOTSTRAP` to allow what nightly allows.
    Debian,
}

impl Toolchain {
    /// Nightly, or else Debian's, installed if it can be; `preferred` asks for one version and no other.
    ///
    /// # Errors
    /// When there is none; with `preferred`, that is `None`.
    pub(super) fn find(preferred: Option<&str>) -> Result<Option<Self>> {
        let fits = |found: &Self| preferred.is_none_or(|version| version.trim() == found.version.trim());
        if let Some(found) = [Kind::Nightly, Kind::Debian].into_iter().filter_map(Self::of).find(fits) {
            return Ok(Some(found));
        }
        if preferred.is_none_or(|version| version.contains(DEBIAN_SOURCE)) && Self::of(Kind::Debian).is_none()
        {
            install(DEBIAN_PACKAGES)?;
        }
        let found = Self::of(Kind::Debian).filter(fits);
        if found.is_none() && preferred.is_none() {
            bail!(
                "no compiler for BPF: `rustup toolchain install nightly --component rust-src`, or on Debian \
                 `apt-get install {}`",
                DEBIAN_PACKAGES.join(" ")
            );
        }
        Ok(found)
    }

    fn of(kind: Kind) -> Option<Self> {
        let rustc = |arguments: &[&str]| {
            let mut command = match kind {
                Kind::Nightly => {
                    let mut command = Command::new(find_program("rustup")?);
                    command.args(["run", "nightly", "rustc"]);
                    command
                }
                Kind::Debian => Command::new(Path::new(DEBIAN_RUSTC)),
            };
            let output = clean(&mut command).args(arguments).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let answer = rustc(&["-vV"])?;
        let line = |name: &str| answer.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let sysroot = rustc(&["--print", "sysroot"])?;
        let source = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
        // A link, with Debian; the compiler names the file behind it.
        let source = source.canonicalize().ok()?;
        source.join("library/core/src/lib.rs").exists().then_some(())?;
        let version = answer.lines().find(|line| line.starts_with("rustc "))?;
        let suffix = if kind == Kind::Debian { " (Debian rust-web-src)\n" } else { "\n" };
        Some(Self { kind, version: format!("{version}{suffix}"), llvm: line("LLVM version: ")?, source })
    }

    /// Its name and version, in a line.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The major version of its LLVM.
    pub(super) fn llvm(&self) -> &str {
        self.llvm.split('.').next().unwrap_or(&self.llvm)
    }

    /// Where the source of `core` is.
    pub(super) fn library_source(&self) -> &Path {
        &self.source
    }

    /// Cargo with this compiler, in the workspace root.
    pub(super) fn cargo(&self) -> Command {
        match self.kind {
            Kind::Nightly => {
                let mut command = Command::new("rustup");
                clean(&mut command).args(["run", "nightly", "cargo"]).current_dir(workspace::root());
                command
            }
            Kind::Debian => {
                let mut command = workspace::cargo([""; 0]);
                // Only for this build: a variable for the outer one would rebuild everything.
                clean(&mut command).env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
                command
            }
        }
    }
}

/// Without what cargo and rustup set for us: it would choose another compiler.
fn clean(command: &mut Command) -> &mut Command {
    for name in ["RUSTC", "RUSTC_WRAPPER", "RUSTUP_TOOLCHAIN", "RUSTFLAGS", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null())
}

/// Installs Debian packages if we may, else names them.
///
/// # Errors
/// When they are still missing then.
pub(super) fn install(packages: &[&str]) -> Result<()> {
    let wanted = packages.join(" ");
    let apt =
        geteuid().is_root() && Path::new("/etc/debian_version").exists() && find_program("apt-get").is_some();
    ensure!(apt, "missing: apt-get install {wanted}");
    packages::install(packages).with_context(|| format!("apt-get install {wanted}"))
}
