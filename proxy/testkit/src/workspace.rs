//! Where things are, and how cargo is called. Knows no subcommand.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};

/// The workspace root: the folder with the lock file, above the package that is run.
pub fn root() -> PathBuf {
    // Cargo sets the variable when it runs us: right even for a binary built in a moved checkout.
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

/// Cargo's target folder, wherever the environment or a cargo configuration puts it.
///
/// # Errors
/// When `cargo metadata` fails or answers something else.
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

/// A folder of our own below the target folder, made if missing.
///
/// # Errors
/// When the target folder cannot be found or written.
pub fn scratch(name: &str) -> Result<PathBuf> {
    let folder = target()?.join("xtask").join(name);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Where programs are installed that no package manager of the system has.
///
/// # Errors
/// When the target folder cannot be found.
pub fn tools() -> Result<PathBuf> {
    Ok(target()?.join("tools"))
}

/// Builds the release binary and returns its path.
///
/// # Errors
/// When the build fails.
pub fn release_binary() -> Result<PathBuf> {
    must(&mut cargo(["build", "--release", "--package", "sluice"]))?;
    Ok(target()?.join("release").join("sluice"))
}

/// Builds the binary by the profile `quick` and without what takes long to compile, for those who want to see it run,
/// and returns its path.
///
/// # Errors
/// When the build fails.
pub fn quick_binary() -> Result<PathBuf> {
    let mut build = cargo(["build", "--profile", "quick", "--package", "sluice"]);
    must(build.args(["--no-default-features", "--features", "ring"]))?;
    Ok(target()?.join("quick").join("sluice"))
}

/// Builds the binary as the host tests have it, without optimization, and returns its path.
///
/// # Errors
/// When the build fails.
pub fn test_binary() -> Result<PathBuf> {
    must(&mut cargo(["test", "--no-run", "--package", "sluice", "--test", "it"]))?;
    Ok(target()?.join("debug").join("sluice"))
}

/// Runs a command with our own standard streams; anything but success is an error.
///
/// # Errors
/// When it cannot start or does not succeed.
pub fn must(command: &mut Command) -> Result<()> {
    let words = describe(command);
    let status = command.status().with_context(|| words.clone())?;
    if !status.success() {
        bail!("`{words}` failed ({status})");
    }
    Ok(())
}

/// A command as one would type it.
pub fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = vec![name.to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}
