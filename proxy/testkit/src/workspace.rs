//! Folders of the workspace, and calls of cargo. Knows no subcommand.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// The workspace root: the folder with the lock file above the running package.
pub fn root() -> PathBuf {
    // Cargo sets the variable when it runs us, so this is right even for a binary built in a checkout that was moved.
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let root = package.ancestors().find(|folder| folder.join("Cargo.lock").is_file());
    root.unwrap_or(&package).to_path_buf()
}

/// Cargo, in the workspace root.
pub fn cargo<I, S>(args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// Cargo's target folder, wherever the environment or a cargo configuration places it.
///
/// # Errors
/// `cargo metadata` fails or prints something unexpected.
pub fn target() -> Result<PathBuf> {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    if let Some(known) = TARGET.get() {
        return Ok(known.clone());
    }
    let output =
        cargo(["metadata", "--format-version", "1", "--no-deps"]).output().context("cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let folder = answer["target_directory"].as_str().context("cargo metadata names no target_directory")?;
    Ok(TARGET.get_or_init(|| PathBuf::from(folder)).clone())
}

/// A folder for our files below the target folder, created if missing.
///
/// # Errors
/// The target folder cannot be found or written.
pub fn scratch(name: &str) -> Result<PathBuf> {
    let folder = target()?.join("xtask").join(name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Folder for programs that no package manager of the system provides.
///
/// # Errors
/// The target folder cannot be found.
pub fn tools() -> Result<PathBuf> {
    Ok(target()?.join("tools"))
}

/// Builds the release binary and returns its path.
///
/// # Errors
/// The build fails.
pub fn release_binary() -> Result<PathBuf> {
    must(&mut cargo(["build", "--release", "--package", "sluice"]))?;
    Ok(target()?.join("release").join("sluice"))
}

/// Builds the binary with the profile `quick` and without the parts that take long to compile, for those who want to
/// try it, and returns its path.
///
/// # Errors
/// The build fails.
pub fn quick_binary() -> Result<PathBuf> {
    let mut build = cargo(["build", "--profile", "quick", "--package", "sluice"]);
    must(build.args(["--no-default-features", "--features", "ring,trace"]))?;
    Ok(target()?.join("quick").join("sluice"))
}

/// Builds the binary like the host tests, without optimization, and returns its path.
///
/// # Errors
/// The build fails.
pub fn test_binary() -> Result<PathBuf> {
    must(&mut cargo(["test", "--no-run", "--package", "sluice", "--test", "it"]))?;
    Ok(target()?.join("debug").join("sluice"))
}

/// Runs a command with our own standard streams. Anything but success is an error.
///
/// # Errors
/// It cannot start or does not succeed.
pub fn must(command: &mut Command) -> Result<()> {
    let words = describe(command);
    let status = command.status().with_context(|| words.clone())?;
    if !status.success() {
        bail!("`{words}` failed ({status})");
    }
    Ok(())
}

/// A command as you would type it.
pub fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = vec![name.to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}
