//! Programs for arm64 on a machine of another architecture: compiled with rustup's standard library and Debian's cross
//! compiler, run by qemu-user. The system calls of such a program are those of this machine's kernel; a kernel for arm64
//! runs in the tests on other kernels.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::packages;
use crate::process::find_program;
use crate::workspace;

/// The target for cargo.
pub const TRIPLE: &str = "aarch64-unknown-linux-gnu";
/// The prefix of its binary tools.
pub const TOOLS: &str = "aarch64-linux-gnu-";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64-static";
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// A program and its Debian package.
const PROGRAMS: [(&str, &str); 2] = [(COMPILER, "gcc-aarch64-linux-gnu"), (EMULATOR, "qemu-user-static")];
const HEADERS: &str = "libc6-dev-arm64-cross";

/// Whether this machine compiles for arm64 anyway.
pub const IS_NATIVE: bool = cfg!(target_arch = "aarch64");

/// Installs what is missing.
///
/// # Errors
/// The standard library or a package is missing and cannot be installed.
pub fn prepare() -> Result<()> {
    let missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| find_program(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        packages::install(&[&missing[..], &[HEADERS]].concat())?;
    }
    // Rustup decides by the folder, where a toolchain may be pinned.
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", TRIPLE]).current_dir(workspace::root()).stdin(Stdio::null());
    let added = rustup.output().context("rustup")?;
    ensure!(
        added.status.success(),
        "`rustup target add {TRIPLE}` failed: {}",
        String::from_utf8_lossy(&added.stderr)
    );
    Ok(())
}

/// Variables with which cargo builds and runs for [`TRIPLE`].
pub fn variables() -> [(&'static str, String); 4] {
    [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER.to_owned()),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{EMULATOR} -L {LIBRARIES}")),
        ("CC_aarch64_unknown_linux_gnu", COMPILER.to_owned()),
        // For programs that the kernel has qemu run, if it does.
        ("QEMU_LD_PREFIX", LIBRARIES.to_owned()),
    ]
}

/// A command that runs a program for arm64.
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(EMULATOR);
    command.args(["-L", LIBRARIES]).arg(program);
    command
}

/// Whether the kernel runs programs for arm64 without being told by whom (binfmt_misc).
pub fn runs_directly(program: &Path) -> bool {
    let mut command = Command::new(program);
    let output = command.arg("--version").envs(variables()).stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}
