//! A container of the image in crun, configured as an engine such as Docker or containerd would do.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluice_testkit::process::{Process, bound};
use sluice_testkit::workspace;

use super::seccomp;
use crate::image::{Built, Stage};

const TRIES: u32 = 500;
const POLL: Duration = Duration::from_millis(20);

/// The host account of root in a user namespace.
const SHIFT: u32 = 100_000;

/// Docker's default capabilities of a container.
const DEFAULT_CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// How a container is run, in addition to the settings of its image.
#[derive(Default)]
pub(super) struct Setting {
    /// Use the profile that we ship instead of the default one.
    pub(super) own_seccomp: bool,
    /// Only these, instead of the default ones.
    pub(super) only_capabilities: Option<&'static [&'static str]>,
    /// Additional capabilities.
    pub(super) more_capabilities: &'static [&'static str],
    pub(super) read_only: bool,
    pub(super) user_namespace: bool,
    /// Whether the host's cgroup2 file system is mounted at its usual place.
    pub(super) cgroup: bool,
    /// Replaces the image's configuration.
    pub(super) configuration: Option<Value>,
    /// A folder of the host, and its path in the container: it outlives the container.
    pub(super) volume: Option<(PathBuf, &'static str)>,
    /// Additional variables, as `NAME=VALUE`.
    pub(super) environment: Vec<String>,
}

/// A container, stopped and removed when dropped.
pub(super) struct Container {
    name: String,
    /// The image's user, by number.
    user: String,
    folder: PathBuf,
    process: Process,
}

impl Container {
    /// Unpacks the image in the scratch folder and starts its command in a separate network.
    ///
    /// # Errors
    /// When a step fails.
    pub(super) fn start(name: &str, built: &Built, stage: &Stage, setting: &Setting) -> Result<Self> {
        let folder = workspace::scratch("containers")?.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let root = folder.join("rootfs");
        fs::create_dir_all(&root)?;
        unpack(&built.layer, &root, setting.user_namespace)?;
        if let Some(configuration) = &setting.configuration {
            fs::write(folder.join("sluice.yaml"), format!("{configuration:#}\n"))?;
        }
        fs::write(folder.join("config.json"), specification(&folder, stage, setting)?.to_string())?;
        let log = workspace::scratch("logs")?.join(format!("container-{name}.log"));
        let name = format!("sluice-test-{}-{name}", std::process::id());
        let mut command = crun(&folder);
        command.args(["run", "--bundle"]).arg(&folder).arg(&name);
        let process = Process::start("crun", &mut command, log, Signal::SIGTERM)?;
        let mut container = Self { name, user: stage.text("User").to_owned(), folder, process };
        container.wait_started()?;
        container.within("ip", &["link", "set", "lo", "up"])?;
        Ok(container)
    }

    /// Runs a program of the host in the container's network.
    ///
    /// # Errors
    /// When it cannot be run, or fails.
    pub(super) fn within(&self, program: &str, args: &[&str]) -> Result<String> {
        let output = self.entering(program).args(args).output().context("nsenter")?;
        said(program, &output)
    }

    /// Creates a link between this container's network and another's, with an address at each end, as an engine's bridge
    /// would. The link disappears with either network.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(super) fn link(&self, other: &Self, addresses: [&str; 2]) -> Result<()> {
        let (ours, theirs) = (self.pid()?.to_string(), other.pid()?.to_string());
        let veth = [
            "link", "add", "link0", "netns", &ours, "type", "veth", "peer", "name", "link0", "netns", &theirs,
        ];
        let output = bound("ip").args(veth).output().context("ip")?;
        said("ip link add", &output)?;
        for (container, address) in [self, other].into_iter().zip(addresses) {
            container.within("ip", &["address", "add", &format!("{address}/30"), "dev", "link0"])?;
            container.within("ip", &["link", "set", "link0", "up"])?;
        }
        Ok(())
    }

    /// A command for a program of the host in the container's network.
    pub(super) fn entering(&self, program: &str) -> Command {
        let mut command = bound("nsenter");
        let namespace = self.pid().map(|pid| format!("--net=/proc/{pid}/ns/net"));
        command.arg(namespace.unwrap_or_default()).arg(program);
        command
    }

    /// Runs a program of the image in the container, like `docker exec`.
    ///
    /// # Errors
    /// When it cannot be run, or fails; with its output.
    pub(super) fn exec(&self, args: &[&str]) -> Result<String> {
        let output = crun(&self.folder)
            .args(["exec", "--user", &self.user, &self.name])
            .args(args)
            .output()
            .context("crun exec")?;
        said(&args.join(" "), &output)
    }

    /// The status of a response; retries until the server listens.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn status(&self, url: &str) -> Result<String> {
        let args = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "60", url];
        let mut failure = None;
        for _ in 0..TRIES {
            match self.within("curl", &args) {
                Ok(status) => return Ok(status),
                Err(error) => failure = Some(error),
            }
            thread::sleep(POLL);
        }
        Err(failure.context("no attempt")?.context(self.process.tail()))
    }

    /// The output on its standard streams.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub(super) fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.process.log())?)
    }

    /// Stops it like an engine, and waits for its exit.
    ///
    /// # Errors
    /// When it does not exit successfully.
    pub(super) fn stop(mut self) -> Result<()> {
        let output = crun(&self.folder).args(["kill", &self.name, "TERM"]).output()?;
        said("crun kill", &output)?;
        self.process.wait()
    }

    fn pid(&self) -> Result<u64> {
        let output = crun(&self.folder).args(["state", &self.name]).output()?;
        let state: Value = serde_json::from_slice(&output.stdout).context("crun state")?;
        state["pid"].as_u64().filter(|pid| *pid != 0).context("no pid")
    }

    fn wait_started(&mut self) -> Result<()> {
        for _ in 0..TRIES {
            if self.pid().is_ok() {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("it does not start\n{}", self.process.tail())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It may have exited; then there is nothing to remove.
        let _ = crun(&self.folder).args(["delete", "--force", &self.name]).output();
        let _ = fs::remove_dir_all(self.folder.join("rootfs"));
    }
}

/// crun refuses a host with both versions of cgroups, even if it should not touch them: it gets its own view with the
/// second version at its usual place.
const WITH_CGROUP2: &str = "if [ -d /sys/fs/cgroup/unified ]; then \
    umount --recursive /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit; fi; exec crun \"$@\"";

fn crun(folder: &Path) -> Command {
    let mut command = bound("unshare");
    command.args(["--mount", "sh", "-c", WITH_CGROUP2, "crun"]);
    command.arg("--root").arg(folder.join("state")).arg("--cgroup-manager=disabled");
    command
}

fn said(what: &str, output: &Output) -> Result<String> {
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    ensure!(output.status.success(), "{what}: {}: {text}", output.status);
    Ok(text)
}

/// With owners, modes and file capabilities; owners as seen in a user namespace, if there is one.
fn unpack(layer: &Path, root: &Path, shifted: bool) -> Result<()> {
    let mut archive = tar::Archive::new(File::open(layer)?);
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(true);
    archive.set_unpack_xattrs(true);
    archive.unpack(root)?;
    if shifted { shift(root) } else { Ok(()) }
}

fn shift(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path)?;
    lchown(path, Some(found.uid() + SHIFT), Some(found.gid() + SHIFT))?;
    if found.is_dir() {
        for entry in fs::read_dir(path)? {
            shift(&entry?.path())?;
        }
    }
    Ok(())
}

/// `config.json` of the OCI runtime specification.
fn specification(folder: &Path, stage: &Stage, setting: &Setting) -> Result<Value> {
    let usual = setting.only_capabilities.unwrap_or(&DEFAULT_CAPABILITIES);
    let capabilities: Vec<&str> = usual.iter().chain(setting.more_capabilities).copied().collect();
    let shipped = workspace::root().join("config/packaging/seccomp.json");
    let shipped: Value = serde_json::from_str(&fs::read_to_string(shipped)?)?;
    let profile = if setting.own_seccomp { shipped } else { seccomp::without_ours(shipped) };
    let user: u32 = stage.text("User").split(':').next().unwrap_or_default().parse().context("User")?;
    let command = [stage.list("Entrypoint"), stage.list("Cmd")].concat();
    let environment = [stage.list("Env"), setting.environment.clone()].concat();
    let mut namespaces = vec!["pid", "ipc", "uts", "mount", "network"];
    let mut linux = json!({
        "seccomp": seccomp::for_runtime(&profile, &capabilities),
        // As Docker sets it.
        "sysctl": {"net.ipv4.ip_unprivileged_port_start": "0"},
        "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list"],
        "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
    });
    if setting.user_namespace {
        namespaces.push("user");
        let mapping = json!([{"containerID": 0, "hostID": SHIFT, "size": 65536}]);
        linux["uidMappings"] = mapping.clone();
        linux["gidMappings"] = mapping;
    }
    linux["namespaces"] = namespaces.iter().map(|kind| json!({"type": kind})).collect();
    Ok(json!({
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs", "readonly": setting.read_only},
        "hostname": "sluice",
        "mounts": mounts(folder, setting),
        "process": {
            "user": {"uid": user, "gid": user},
            "args": command,
            "env": environment,
            "cwd": "/",
            // An account other than root has none effective: the bounding set limits what it can gain.
            "capabilities": {"bounding": capabilities, "effective": [], "permitted": [], "inheritable": [], "ambient": []},
            "noNewPrivileges": false,
        },
        "linux": linux,
    }))
}

fn mounts(folder: &Path, setting: &Setting) -> Vec<Value> {
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]}),
    ];
    if setting.configuration.is_some() {
        let source = folder.join("sluice.yaml");
        mounts.push(json!({"destination": "/etc/sluice/sluice.yaml", "type": "bind", "source": source,
            "options": ["bind", "ro"]}));
    }
    if let Some((source, destination)) = &setting.volume {
        mounts
            .push(json!({"destination": destination, "type": "bind", "source": source, "options": ["bind"]}));
    }
    if setting.cgroup {
        mounts.push(json!({"destination": "/sys/fs/cgroup", "type": "bind", "source": "/sys/fs/cgroup",
            "options": ["rbind", "ro"]}));
    }
    mounts
}
