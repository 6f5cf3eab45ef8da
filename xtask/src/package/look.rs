//! Checks the content of a package, and that it works: unpacked into a folder, without installing anything.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sluice_testkit::arm64;
use sluice_testkit::process::find_program;
use sluice_testkit::ship::Machine;

use super::succeed;

/// Required files with their modes.
const FILES: &[(&str, u32)] = &[
    ("usr/bin/sluice", 0o755),
    ("etc/sluice/sluice.yaml", 0o644),
    ("usr/lib/systemd/system/sluice.service", 0o644),
    ("usr/lib/sysusers.d/sluice.conf", 0o644),
    ("usr/share/man/man1/sluice.1.gz", 0o644),
    ("usr/share/man/man1/sluice-run.1.gz", 0o644),
    ("usr/share/man/man5/sluice.yaml.5.gz", 0o644),
    ("usr/share/bash-completion/completions/sluice", 0o644),
    ("usr/share/zsh/vendor-completions/_sluice", 0o644),
    ("usr/share/fish/vendor_completions.d/sluice.fish", 0o644),
    ("usr/share/doc/sluice/copyright", 0o644),
    ("usr/share/doc/sluice/guide/acme.md", 0o644),
    ("usr/share/doc/sluice/migrate/nginx.md", 0o644),
    ("usr/share/doc/sluice/examples/puma.yaml", 0o644),
    ("usr/share/doc/sluice/changelog.Debian.gz", 0o644),
    ("usr/share/sluice/scripts/accept_queue.bt", 0o644),
    ("etc/logrotate.d/sluice", 0o644),
];

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Fields of the control file, each with a required part.
const FIELDS: [(&str, &str); 5] = [
    ("Package", "sluice"),
    ("Section", "httpd"),
    ("Depends", "libc6"),
    ("Maintainer", "<"),
    ("Description", "reverse proxy"),
];

/// Unpacks `package` into `root`, which is created anew, and checks everything.
///
/// # Errors
/// The first problem found.
pub(super) fn look(machine: Machine, package: &Path, root: &Path) -> Result<()> {
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| root.display().to_string())?;
    }
    dpkg_deb(["--extract".as_ref(), package.as_os_str(), root.as_os_str()])?;
    let control = root.join("DEBIAN");
    dpkg_deb(["--control".as_ref(), package.as_os_str(), control.as_os_str()])?;
    fields(package)?;
    files(root)?;
    scripts(&control)?;
    let conffiles = fs::read_to_string(control.join("conffiles")).context("conffiles")?;
    let expected = ["/etc/sluice/sluice.yaml", "/etc/logrotate.d/sluice"];
    ensure!(conffiles.lines().eq(expected), "conffiles are {conffiles:?}");
    binary(machine, root)?;
    account(root)
}

fn dpkg_deb<'a>(args: impl IntoIterator<Item = &'a std::ffi::OsStr>) -> Result<String> {
    succeed(Command::new("dpkg-deb").args(args))
}

fn fields(package: &Path) -> Result<()> {
    for (field, part) in FIELDS {
        let value = dpkg_deb(["--field".as_ref(), package.as_os_str(), field.as_ref()])?;
        ensure!(value.contains(part), "{field} is {value:?}, without {part:?}");
    }
    Ok(())
}

fn files(root: &Path) -> Result<()> {
    for (name, mode) in FILES {
        let found = fs::metadata(root.join(name)).with_context(|| format!("{name} is not in the package"))?;
        let is = found.permissions().mode() & 0o7777;
        ensure!(is == *mode, "{name} has mode {is:o}, not {mode:o}");
    }
    Ok(())
}

fn scripts(control: &Path) -> Result<()> {
    for name in SCRIPTS {
        let script = control.join(name);
        let mode = fs::metadata(&script).with_context(|| name.to_owned())?.permissions().mode();
        ensure!(mode & 0o111 == 0o111, "{name} cannot be executed");
        succeed(Command::new("sh").arg("-n").arg(&script))?;
    }
    Ok(())
}

/// The packaged (stripped) binary reads the packaged configuration.
fn binary(machine: Machine, root: &Path) -> Result<()> {
    let run = |args: &[&str]| succeed(sluice(machine, root).args(args).current_dir(root));
    let checked = run(&["check", "--config", "etc/sluice/sluice.yaml"])?;
    ensure!(checked == "etc/sluice/sluice.yaml: ok\n", "check says {checked:?}");
    let version = run(&["version"])?;
    ensure!(version == concat!("sluice ", env!("CARGO_PKG_VERSION"), "\n"), "version says {version:?}");
    for entry in fs::read_dir(root.join("usr/share/doc/sluice/examples"))? {
        let path = entry?.path();
        if path.is_file() {
            example(machine, root, &path)?;
        }
    }
    Ok(())
}

/// The packaged binary, as a command.
fn sluice(machine: Machine, root: &Path) -> Command {
    let binary = root.join("usr/bin/sluice");
    match machine {
        Machine::Native => Command::new(binary),
        Machine::Arm64 => arm64::command(&binary),
    }
}

/// An example has no mistakes, except that it names files of the hosts it is written for.
fn example(machine: Machine, root: &Path, path: &Path) -> Result<()> {
    let output = sluice(machine, root).args(["check", "--config"]).arg(path).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let is_elsewhere = |line: &str| line.ends_with("does not exist; create it first");
    let fits = output.status.success() || !said.is_empty() && said.lines().all(is_elsewhere);
    ensure!(fits, "`sluice check --config {}`: {said}", path.display());
    Ok(())
}

/// The account is created in the folder, as postinst would create it on a host.
fn account(root: &Path) -> Result<()> {
    let Some(sysusers) = find_program("systemd-sysusers") else {
        println!("skipped the account check: systemd-sysusers is missing");
        return Ok(());
    };
    let root_flag = format!("--root={}", root.display());
    succeed(Command::new(sysusers).arg(root_flag).arg("sluice.conf"))?;
    let accounts = fs::read_to_string(root.join("etc/passwd")).context("etc/passwd")?;
    ensure!(
        accounts.lines().any(|line| line.starts_with("sluice:")),
        "the package creates no account: {accounts:?}"
    );
    Ok(())
}
