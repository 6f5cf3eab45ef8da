//! The programs that checks run: found, installed by apt if possible, or reported as missing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

use crate::process::find_program;
use crate::workspace::must;

/// A program and its Debian package.
const PROGRAMS: &[(&str, &str)] = &[
    ("bpftool", "bpftool"),
    ("bpftrace", "bpftrace"),
    ("busybox", "busybox-static"),
    ("crun", "crun"),
    ("curl", "curl"),
    ("dnsmasq", "dnsmasq-base"),
    ("dpkg", "dpkg"),
    ("etcd", "etcd-server"),
    ("go", "golang-go"),
    ("h2load", "nghttp2-client"),
    ("haproxy", "haproxy"),
    ("ip", "iproute2"),
    ("mandoc", "mandoc"),
    ("nginx", "nginx-light"),
    ("node", "nodejs"),
    ("nsenter", "util-linux"),
    ("pgrep", "procps"),
    ("prometheus", "prometheus"),
    ("puma", "puma"),
    ("python3", "python3"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("redis-server", "redis-server"),
    ("ruby", "ruby"),
    ("sha256sum", "coreutils"),
    ("strace", "strace"),
    ("strip", "binutils"),
    ("unshare", "util-linux"),
    ("wrk", "wrk"),
];

/// Not a program: the library that a `config.ru` requires.
const RACK: (&str, &str) = ("rack", "ruby-rack");

const NGINX_PID: &str = "/run/nginx.pid";

/// The programs that are missing.
pub struct Tools {
    missing: BTreeSet<&'static str>,
}

impl Tools {
    /// Looks for every program. As root on Debian or Ubuntu it installs missing ones; otherwise it prints their names.
    pub fn prepare() -> Self {
        let missing = missing();
        if missing.is_empty() {
            return Self { missing };
        }
        let packages = packages_of(&missing);
        let apt = geteuid().is_root()
            && Path::new("/etc/debian_version").exists()
            && find_program("apt-get").is_some();
        if !apt {
            println!("missing: apt-get install {}", packages.join(" "));
            return Self { missing };
        }
        if let Err(error) = install(&packages) {
            println!("missing: {}: {error:#}", packages.join(" "));
        }
        Self { missing: self::missing() }
    }

    /// The missing programs among `names`, in words, if there are any.
    pub fn lack(&self, names: &[&'static str]) -> Option<String> {
        let lacking: BTreeSet<&str> =
            names.iter().copied().filter(|name| self.missing.contains(name)).collect();
        let names: Vec<&str> = lacking.iter().copied().collect();
        (!names.is_empty()).then(|| {
            let packages = packages_of(&lacking).join(" ");
            format!("{} missing (apt-get install {packages})", names.join(", "))
        })
    }
}

fn missing() -> BTreeSet<&'static str> {
    let mut missing: BTreeSet<&str> = PROGRAMS
        .iter()
        .map(|(program, _)| *program)
        .filter(|program| find_program(program).is_none())
        .collect();
    let rack = Command::new("ruby")
        .args(["-e", "require \"rack\""])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !rack.is_ok_and(|status| status.success()) {
        missing.insert(RACK.0);
    }
    missing
}

fn packages_of(names: &BTreeSet<&str>) -> Vec<&'static str> {
    PROGRAMS
        .iter()
        .chain([&RACK])
        .filter(|(program, _)| names.contains(program))
        .map(|(_, package)| *package)
        .collect()
}

/// Installs Debian packages, and stops the nginx that the installation may have started.
///
/// # Errors
/// apt-get fails.
pub fn install(packages: &[&str]) -> Result<()> {
    let running = fs::read_to_string(NGINX_PID).ok();
    must(apt().arg("update"))?;
    must(apt().args(["install", "-y", "--no-install-recommends"]).args(packages))?;
    // The package may have started a server on port 80. If it did not run before, stop it.
    let started = fs::read_to_string(NGINX_PID).ok();
    if let (None, Some(pid)) = (running, started)
        && let Ok(pid) = pid.trim().parse()
    {
        kill(Pid::from_raw(pid), Signal::SIGQUIT)?;
    }
    Ok(())
}

/// Unpacks Debian packages into `folder` without installing them; a package of another architecture is `name:arch`.
/// They are unpacked elsewhere first, so that a folder with this name is complete.
///
/// # Errors
/// apt-get or dpkg fails, or the folder exists.
pub fn unpack(packages: &[String], folder: &Path) -> Result<()> {
    let partial = folder.with_extension("part");
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    let (files, root) = (partial.join("files"), partial.join("root"));
    fs::create_dir_all(&files)?;
    must(apt().arg("download").args(packages).current_dir(&files))?;
    for file in fs::read_dir(&files)? {
        must(Command::new("dpkg").arg("-x").args([&file?.path(), &root]))?;
    }
    fs::rename(&root, folder)?;
    Ok(fs::remove_dir_all(&partial)?)
}

/// Adds an architecture to those whose packages apt offers.
///
/// # Errors
/// dpkg or apt-get fails.
pub fn add_architecture(name: &str) -> Result<()> {
    let output = Command::new("dpkg").arg("--print-foreign-architectures").output()?;
    if String::from_utf8_lossy(&output.stdout).lines().any(|known| known == name) {
        return Ok(());
    }
    must(Command::new("dpkg").args(["--add-architecture", name]))?;
    must(apt().arg("update"))
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command
        .args(["-q", "-o", "Dpkg::Use-Pty=0"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        // As in single-user mode: without systemd, installed services are then not started.
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn missing_programs_are_named_with_their_packages() {
        let tools = Tools { missing: ["go", "rack"].into() };
        let lack = tools.lack(&["curl", "go", "rack"]).unwrap();
        assert_eq!(lack, "go, rack missing (apt-get install golang-go ruby-rack)");
        assert_eq!(tools.lack(&["curl"]), None);
    }
}
