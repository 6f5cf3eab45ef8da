//! Containers of a real Podman, by its service that speaks Docker's API: they start, are replaced and end, and so does the
//! service. All of it is in a network namespace of the check, and in storage of its own.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use sluice_testkit::packages::install;
use sluice_testkit::process::{Process, bound, find_program};
use sluice_testkit::workspace;

use super::super::client::Client;
use super::super::etcd::{POLL, TRIES};
use super::super::namespace::Switch;
use super::super::site::Site;

/// Answers in a row that show all targets.
const ANSWERS: usize = 40;
/// crun refuses a host with both versions of cgroups; it gets its own view with the second one alone.
const WITH_CGROUP2: &str = "if [ -d /sys/fs/cgroup/unified ]; then umount --recursive /sys/fs/cgroup && \
    mount -t cgroup2 none /sys/fs/cgroup || exit; fi; exec sleep infinity";
/// No control groups and no limits of its own, which need privileges that a container of CI lacks.
const CONTAINERS_CONF: &str = "[containers]
cgroups = \"disabled\"
default_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]
[engine]
cgroup_manager = \"cgroupfs\"
events_logger = \"file\"
runtime = \"crun\"
[engine.runtimes]
crun = [\"@FOLDER@/crun\"]
";
const CRUN: &str = "#!/bin/sh\nexec crun --cgroup-manager=disabled \"$@\"\n";

/// A Podman with its own storage, in a mount namespace that lives as long as a process.
struct Podman {
    folder: PathBuf,
    holder: Process,
    service: Option<Process>,
}

impl Podman {
    fn start() -> Result<Self> {
        let folder = workspace::scratch("operate")?.join("podman");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(folder.join("rootfs/bin"))?;
        let busybox = find_program("busybox").context("busybox")?;
        fs::copy(busybox, folder.join("rootfs/bin/busybox"))?;
        let path = folder.display().to_string();
        fs::write(folder.join("containers.conf"), CONTAINERS_CONF.replace("@FOLDER@", &path))?;
        let storage =
            format!("[storage]\ndriver = \"vfs\"\nrunroot = \"{path}/run\"\ngraphroot = \"{path}/graph\"\n");
        fs::write(folder.join("storage.conf"), storage)?;
        fs::write(folder.join("crun"), CRUN)?;
        fs::set_permissions(folder.join("crun"), fs::Permissions::from_mode(0o755))?;
        let mut command = bound("unshare");
        command.args(["--mount", "sh", "-c", WITH_CGROUP2]);
        let log = workspace::scratch("logs")?.join("podman-mounts.log");
        let holder = Process::start("mounts", &mut command, log, Signal::SIGKILL)?;
        let mut podman = Self { folder, holder, service: None };
        podman.wait_for("the mounts", |podman| Ok(podman.run(&["version"]).is_ok()))?;
        podman.serve()?;
        Ok(podman)
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("podman.sock")
    }

    fn command(&self) -> Command {
        let mut command = bound("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.pid())).arg("podman");
        command.env("CONTAINERS_STORAGE_CONF", self.folder.join("storage.conf"));
        command.env("CONTAINERS_CONF", self.folder.join("containers.conf"));
        command
    }

    /// Starts its service.
    fn serve(&mut self) -> Result<()> {
        let mut command = self.command();
        command.args(["system", "service", "--time=0"]).arg(format!("unix://{}", self.socket().display()));
        let log = workspace::scratch("logs")?.join("podman-service.log");
        self.service = Some(Process::start("podman", &mut command, log, Signal::SIGTERM)?);
        Ok(())
    }

    fn run(&self, args: &[&str]) -> Result<()> {
        let output = self.command().args(args).output().context("podman")?;
        ensure!(output.status.success(), "podman {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Starts a container of the application, which answers with its name.
    fn start_container(&self, name: &str) -> Result<()> {
        let root = self.folder.join("rootfs");
        fs::create_dir_all(root.join(name))?;
        fs::write(root.join(name).join("index.html"), name)?;
        let labels = ["sluice.host=app.test", "sluice.port=8080", "sluice.health=/", "sluice.service=app"];
        let labels = labels.iter().flat_map(|label| ["--label", label]);
        let mut args: Vec<&str> = vec!["run", "--detach", "--stop-signal=KILL", "--name", name];
        args.extend(labels);
        let root = root.display().to_string();
        args.extend(["--rootfs", &root, "/bin/busybox", "httpd", "-f", "-p", "8080", "-h", name]);
        self.run(&args)
    }

    fn wait_for(&mut self, what: &str, is_so: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        for _ in 0..TRIES {
            if is_so(self)? {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("{what}: not in time\n{}", self.holder.tail())
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        if let Err(error) = self.run(&["rm", "--all", "--force", "--time", "0"]) {
            eprintln!("warning: {error:#}");
        }
    }
}

/// # Errors
/// A service does not have the targets that its containers are.
pub(in super::super) fn containers_change(binary: &Path) -> Result<String> {
    install(&["podman"])?;
    let binary = binary.to_owned();
    // A thread of its own: its network is another one.
    let check = thread::Builder::new().name("podman".to_owned()).spawn(move || apart(&binary))?;
    check.join().unwrap_or_else(|_| bail!("panicked"))
}

fn apart(binary: &Path) -> Result<String> {
    let _switch = Switch::move_here()?;
    let site = Site::start("discovery-podman", binary, json!({}))?;
    let mut podman = Podman::start()?;
    let mut command = site.command("discover docker --remove-after 1s --socket");
    command.arg(podman.socket());
    let log = workspace::scratch("logs")?.join("discovery-podman-discover.log");
    let mut discover = Process::start("sluice discover", &mut command, log, Signal::SIGTERM)?;

    podman.start_container("one")?;
    answer(&site, &["one"])?;
    podman.start_container("two")?;
    answer(&site, &["one", "two"])?;
    podman.run(&["kill", "one"])?;
    answer(&site, &["two"])?;

    // Its service ends; its containers do not.
    podman.service.take().context("it runs")?.stop()?;
    answer(&site, &["two"])?;
    podman.start_container("three")?;
    podman.serve()?;
    answer(&site, &["three", "two"])?;

    // Somebody else's service stays when the last container goes.
    site.must("deploy other --host other.test --target 127.0.0.1:9 --force")?;
    podman.run(&["rm", "--all", "--force", "--time", "0"])?;
    podman.wait_for("no container, no service", |_| Ok(!site.must("list")?.contains("docker-app")))?;
    ensure!(site.must("list")?.contains("other"), "a service of another is gone");
    discover.stop()?;
    Ok("three containers, and the service of Podman stopped once".to_owned())
}

/// Waits until the answers of the application are exactly these.
fn answer(site: &Site, wanted: &[&str]) -> Result<()> {
    let wanted: BTreeSet<String> = wanted.iter().map(|&name| name.to_owned()).collect();
    let mut seen = BTreeSet::new();
    for _ in 0..TRIES {
        seen.clear();
        for _ in 0..ANSWERS {
            let answer = Client::connect(site.address)?.get("/", true)?;
            seen.insert(if answer.status == 200 { answer.text } else { answer.status.to_string() });
        }
        if seen == wanted {
            return Ok(());
        }
        thread::sleep(POLL);
    }
    bail!("the answers are {seen:?}, wanted {wanted:?}\n{}", site.sluice.tail())
}
