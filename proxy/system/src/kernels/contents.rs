//! The content of a guest: the built test binaries and sluice, programs that tests call, and their libraries.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use sluice_testkit::arm64;
use sluice_testkit::ship::{Machine, strip};
use sluice_testkit::workspace::{cargo, describe, root, scratch};

use super::archive::Archive;
use super::guest;
use super::image::Image;
use super::userland::Userland;

/// Programs that tests need in their real versions: those of busybox have other options, and replace the rest.
const PROGRAMS: [&str; 9] = ["bpftool", "cat", "ip", "mount", "nsenter", "setpriv", "sh", "sleep", "unshare"];
/// Built as modules in Debian.
const MODULES: [&str; 2] = ["tls", "veth"];
const TESTS: [&str; 2] = ["kernel", "it"];
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// The stripped binaries under test.
pub(super) struct Built {
    userland: Userland,
    /// The path where tests expect sluice, and the stripped file.
    sluice: (PathBuf, PathBuf),
    tests: Vec<(&'static str, PathBuf)>,
}

impl Built {
    /// Lets cargo build them, or report their paths.
    ///
    /// # Errors
    /// When the build fails.
    pub(super) fn prepare(machine: Machine) -> Result<Self> {
        let mut command = cargo(["test", "--no-run", "--message-format", "json", "--package", "sluice"]);
        command.args(TESTS.iter().flat_map(|test| ["--test", test]));
        if let Some(triple) = machine.triple() {
            command.args(["--target", triple]).envs(arm64::variables());
        }
        println!("$ {}", describe(&command));
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cargo test")?;
        ensure!(output.status.success(), "cargo test --no-run failed");
        let text = String::from_utf8_lossy(&output.stdout);
        let sluice = executable(&text, "bin", "sluice")?;
        let stripped = |file: &Path, name: &str| -> Result<PathBuf> {
            let to = scratch(&format!("kernels/stripped-{}", machine.name()))?.join(name);
            strip(machine, file, &to).map(|()| to)
        };
        let tests = TESTS.map(|test| Ok((test, stripped(&executable(&text, "test", test)?, test)?)));
        let tests = tests.into_iter().collect::<Result<Vec<_>>>()?;
        let userland = Userland::find(machine)?;
        Ok(Self { userland, sluice: (sluice.clone(), stripped(&sluice, "sluice")?), tests })
    }

    /// The files of a guest that runs these `parts`, a shell script.
    ///
    /// # Errors
    /// When something is missing.
    pub(super) fn archive(&self, image: &Image, parts: &str) -> Result<Archive> {
        let mut archive = Archive::default();
        for folder in ["dev", "proc", "sys", "tmp", "run", "root"] {
            archive.folder(folder);
        }
        for link in ["sbin", "usr/bin", "usr/sbin"] {
            archive.link(link, "/bin");
        }
        archive.text(
            "init",
            include_str!("init.sh").replace("/dev/tests", &format!("/dev/{}", guest::output(image.machine))),
        );
        archive.text("parts.sh", parts);
        archive.text("etc/passwd", PASSWD);
        archive.text("etc/group", GROUP);
        archive.text("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n");
        let mut programs = Vec::new();
        for (test, file) in &self.tests {
            programs.push((Path::new("bin").join(test), file.clone()));
        }
        let (place, file) = &self.sluice;
        programs.push((place.clone(), file.clone()));
        archive.link("bin/sluice", &place.display().to_string());
        // Tests start in the same folder as with cargo.
        archive.folder(root().join("proxy/sluice"));
        for name in PROGRAMS.iter().chain(&["busybox"]) {
            let file = self.userland.program(name)?;
            programs.push((Path::new("bin").join(name), file));
        }
        for applet in applets()?.iter().filter(|applet| !PROGRAMS.contains(&applet.as_str())) {
            archive.link(Path::new("bin").join(applet), "busybox");
        }
        for (path, file) in self.userland.libraries(programs.iter().map(|(_, file)| file.as_path()))? {
            archive.file(path, file);
        }
        for (path, file) in programs {
            archive.file(path, file);
        }
        for name in MODULES {
            let file = image.module(name)?;
            archive.file(Path::new("modules").join(file.file_name().unwrap_or_default()), &file);
        }
        Ok(archive)
    }
}

/// The path of a target, from the messages of cargo's build.
fn executable(messages: &str, kind: &str, name: &str) -> Result<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut found =
        messages.filter(|message| message["target"]["kind"][0] == kind && message["target"]["name"] == name);
    let path = found.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    path.with_context(|| format!("cargo has built no {kind} {name}"))
}

/// Programs that busybox can replace.
fn applets() -> Result<Vec<String>> {
    let output = Command::new("busybox").arg("--list").output().context("busybox")?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .filter(|name| name != "busybox")
        .collect())
}
