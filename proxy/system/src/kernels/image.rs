//! Debian's packaged kernels: found by version prefix, downloaded, unpacked and cached.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sluice_testkit::packages::unpack;
use sluice_testkit::process::find_program;
use sluice_testkit::ship::Machine;
use sluice_testkit::workspace::{must, scratch};

const PACKAGE: &str = "linux-image-";

/// The end of the names of Debian's smallest; no driver of real hardware is needed.
fn flavour(machine: Machine) -> &'static str {
    match machine {
        Machine::Native => "-cloud-amd64",
        // A signed one is not in the lists of another architecture.
        Machine::Arm64 => "-cloud-arm64-unsigned",
    }
}

/// An unpacked package.
pub(super) struct Image {
    pub(super) machine: Machine,
    folder: PathBuf,
    /// As printed by `uname -r`.
    pub(super) release: String,
    pub(super) kernel: PathBuf,
}

impl Image {
    /// The newest of this version that apt offers, or one that is cached; `None` if there is none.
    ///
    /// # Errors
    /// When a download fails, or the package is not as expected.
    pub(super) fn find(machine: Machine, version: &str) -> Result<Option<Self>> {
        let kept = scratch("kernels/images")?;
        let mut known = offered(machine, version)?;
        known.extend(names(&kept, version)?);
        let Some(package) = newest(machine, known) else { return Ok(None) };
        let folder = kept.join(&package);
        if !folder.exists() {
            unpack(&[qualified(machine, &package)], &folder)?;
        }
        let release = package.trim_start_matches(PACKAGE).trim_end_matches("-unsigned").to_owned();
        let kernel = folder.join("boot").join(format!("vmlinuz-{release}"));
        ensure!(kernel.is_file(), "{} is missing", kernel.display());
        Ok(Some(Self { machine, folder, release, kernel }))
    }

    /// The file of a module, which may be compressed.
    ///
    /// # Errors
    /// When it has none.
    pub(super) fn module(&self, name: &str) -> Result<PathBuf> {
        let mut folders = vec![self.folder.join("lib/modules").join(&self.release).join("kernel")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
                let path = entry?.path();
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                if path.is_dir() {
                    folders.push(path);
                } else if file.strip_prefix(name).is_some_and(|rest| rest.starts_with(".ko")) {
                    return Ok(path);
                }
            }
        }
        anyhow::bail!("{PACKAGE}{} has no module {name}", self.release)
    }
}

/// Packages that apt offers; none without apt. Tries again after an update, because a fresh machine has no lists.
fn offered(machine: Machine, version: &str) -> Result<Vec<String>> {
    if find_program("apt-cache").is_none() {
        return Ok(Vec::new());
    }
    let search = || -> Result<Vec<String>> {
        let pattern = format!("^{PACKAGE}{}[.].*{}$", version.replace('.', "[.]"), flavour(machine));
        let output = Command::new("apt-cache").args(["search", "--names-only", &pattern]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
    };
    let found = search()?;
    if found.is_empty() && must(Command::new("apt-get").args(["-q", "update"])).is_ok() {
        return search();
    }
    Ok(found)
}

/// Packages that are unpacked already.
fn names(kept: &Path, version: &str) -> Result<Vec<String>> {
    let names = fs::read_dir(kept)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Result<Vec<String>> = names.collect();
    Ok(names?.into_iter().filter(|name| name.starts_with(&format!("{PACKAGE}{version}."))).collect())
}

/// By the numbers in the name.
fn newest(machine: Machine, names: Vec<String>) -> Option<String> {
    let numbers = |name: &String| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    names.into_iter().filter(|name| name.ends_with(flavour(machine))).max_by_key(numbers)
}

/// The name of a package with its architecture, as apt wants it.
pub(super) fn qualified(machine: Machine, package: &str) -> String {
    match machine {
        Machine::Native => package.to_owned(),
        Machine::Arm64 => format!("{package}:arm64"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_has_the_highest_number() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
        let of = |all: &[&str]| newest(Machine::Native, names(all));
        let later = "linux-image-6.12.117+deb12-cloud-amd64";
        assert_eq!(of(&["linux-image-6.12.99+deb12-cloud-amd64", later]).as_deref(), Some(later));
        assert_eq!(of(&["linux-image-6.12.117+deb12-amd64"]), None);
    }
}
