//! The compiler for BPF. It needs the source of `core`, because no BPF target comes with a built one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::geteuid;
use sluice_testkit::process::find_program;
use sluice_testkit::{packages, workspace};

/// Debian's compiler for web browsers, which is newer than its `rustc`, and the matching source.
const DEBIAN_PACKAGES: &[&str] = &["rustc-web", "rust-web-src"];
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_SOURCE: &str = "rust-web-src";

/// A compiler and how to make cargo use it.
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
    /// Debian's, which `RUSTC_BOOTSTRAP` makes allow what nightly allows.
    Debian,
}

impl Toolchain {
    /// Finds nightly or else Debian's compiler, and installs the latter if possible. `preferred` allows only that
    /// version.
    ///
    /// # Errors
    /// There is no compiler. With `preferred`, a missing compiler is `None` instead.
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
        // With Debian this is a link, but the compiler names the target file.
        let source = source.canonicalize().ok()?;
        source.join("library/core/src/lib.rs").exists().then_some(())?;
        let version = answer.lines().find(|line| line.starts_with("rustc "))?;
        let suffix = if kind == Kind::Debian { " (Debian rust-web-src)\n" } else { "\n" };
        Some(Self { kind, version: format!("{version}{suffix}"), llvm: line("LLVM version: ")?, source })
    }

    /// Its name and version, in one line.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The major version of its LLVM.
    pub(super) fn llvm(&self) -> &str {
        self.llvm.split('.').next().unwrap_or(&self.llvm)
    }

    /// Path of the source of `core`.
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
                // Set only for this build: as a variable of the outer build it would rebuild everything.
                clean(&mut command).env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
                command
            }
        }
    }
}

/// Removes what cargo and rustup set for us, which would select another compiler.
fn clean(command: &mut Command) -> &mut Command {
    for name in ["RUSTC", "RUSTC_WRAPPER", "RUSTUP_TOOLCHAIN", "RUSTFLAGS", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null())
}

/// Installs Debian packages if permitted; otherwise the error names them.
///
/// # Errors
/// They are still missing.
pub(super) fn install(packages: &[&str]) -> Result<()> {
    let wanted = packages.join(" ");
    let apt =
        geteuid().is_root() && Path::new("/etc/debian_version").exists() && find_program("apt-get").is_some();
    ensure!(apt, "missing: apt-get install {wanted}");
    packages::install(packages).with_context(|| format!("apt-get install {wanted}"))
}
