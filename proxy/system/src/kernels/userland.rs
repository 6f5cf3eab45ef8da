//! Where a guest's programs and their libraries come from: this host, or Debian's packages for another machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use sluice_testkit::packages::unpack;
use sluice_testkit::process::find_program;
use sluice_testkit::ship::Machine;
use sluice_testkit::workspace::scratch;

use super::image::qualified;

/// Packages with the programs of a guest, and with the libraries that these need.
const PACKAGES: [&str; 24] = [
    "bpftool",
    "busybox-static",
    "coreutils",
    "dash",
    "iproute2",
    "libblkid1",
    "libbpf1",
    "libbsd0",
    "libc6",
    "libcap-ng0",
    "libcap2",
    "libelf1",
    "libgcc-s1",
    "libmd0",
    "libmnl0",
    "libmount1",
    "libpcre2-8-0",
    "libselinux1",
    "libsmartcols1",
    "libxtables12",
    "mount",
    "util-linux",
    "zlib1g",
    "libacl1",
];
/// A program that has another name in its package.
const RENAMED: (&str, &str) = ("sh", "dash");
const LIBRARY_FOLDERS: [&str; 3] = ["lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib"];
const LOADER: &str = "ld-linux-aarch64.so.1";

/// Files by the paths at which they are expected.
type Files = BTreeMap<PathBuf, PathBuf>;

/// The place of programs.
pub(super) enum Userland {
    /// This host.
    Host,
    /// Packages for arm64, unpacked into this folder.
    Unpacked(PathBuf),
}

impl Userland {
    /// Downloads packages if it is not this host.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn find(machine: Machine) -> Result<Self> {
        if machine == Machine::Native {
            return Ok(Self::Host);
        }
        let folder = scratch("kernels")?.join("userland-arm64");
        if !folder.exists() {
            unpack(&PACKAGES.map(|package| qualified(machine, package)), &folder)?;
        }
        Ok(Self::Unpacked(folder))
    }

    /// The file of a program.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn program(&self, name: &str) -> Result<PathBuf> {
        let found = match self {
            Self::Host => find_program(name),
            Self::Unpacked(root) => {
                let name = if name == RENAMED.0 { RENAMED.1 } else { name };
                let files = ["bin", "sbin", "usr/bin", "usr/sbin"].map(|folder| root.join(folder).join(name));
                files.into_iter().find(|file| file.is_file())
            }
        };
        found.with_context(|| format!("{name} is missing"))
    }

    /// The libraries of these programs, and the loader.
    ///
    /// # Errors
    /// When one is missing.
    pub(super) fn libraries<'a>(&self, programs: impl Iterator<Item = &'a Path>) -> Result<Files> {
        match self {
            Self::Host => host_libraries(programs),
            Self::Unpacked(root) => unpacked_libraries(root, programs),
        }
    }
}

fn host_libraries<'a>(programs: impl Iterator<Item = &'a Path>) -> Result<Files> {
    let mut found = Files::new();
    for program in programs {
        // It fails for statically linked programs, and then lists none.
        let output = Command::new("ldd").arg(program).stderr(Stdio::null()).output().context("ldd")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let paths = text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from);
        found.extend(paths.map(|path| (path.clone(), path)));
    }
    Ok(found)
}

/// This host cannot run the loader, so the names that programs and libraries need are followed from one to the next.
fn unpacked_libraries<'a>(root: &Path, programs: impl Iterator<Item = &'a Path>) -> Result<Files> {
    let mut open: Vec<PathBuf> = programs.map(Path::to_path_buf).collect();
    let mut found = Files::from([(Path::new("/lib").join(LOADER), root.join("lib").join(LOADER))]);
    while let Some(file) = open.pop() {
        for name in needed(&file)? {
            let mut places = LIBRARY_FOLDERS.iter().map(|folder| root.join(folder).join(&name));
            let library = places.find(|place| place.is_file());
            let library =
                library.with_context(|| format!("{} needs {name}, which no package has", file.display()))?;
            if found.insert(Path::new("/lib/aarch64-linux-gnu").join(&name), library.clone()).is_none() {
                open.push(library);
            }
        }
    }
    Ok(found)
}

/// The names of libraries that a file names itself.
fn needed(file: &Path) -> Result<Vec<String>> {
    let output = Command::new("readelf").arg("--dynamic").arg(file).output().context("readelf")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter(|line| line.contains("(NEEDED)")).filter_map(|line| {
        let (_, name) = line.split_once('[')?;
        Some(name.trim_end_matches(']').to_owned())
    });
    Ok(names.collect())
}
