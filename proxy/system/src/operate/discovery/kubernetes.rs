//! EndpointSlices of a real API server of Kubernetes, which is killed and started again. All of it is in a network namespace of
//! the check, because Kubernetes refuses endpoints on loopback.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sluice_testkit::pinned;
use sluice_testkit::process::{Process, bound};
use sluice_testkit::workspace;

use super::super::etcd::{Etcd, POLL, TRIES};
use super::super::namespace::{Switch, address};
use super::{Applications, Scene};

/// The address of everything: that of the switch.
const HOST: u8 = 1;
const PORT: u16 = 6443;
const TOKEN: &str = "a-secret-of-the-check";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// # Errors
/// A request has failed, or sluice does not use what Kubernetes has.
pub(in super::super) fn slices_change(binary: &Path) -> Result<String> {
    // Built before the network is gone.
    let program = pinned::tool("kube-apiserver")?;
    let binary = binary.to_owned();
    // A thread of its own: its network is another one.
    let check =
        thread::Builder::new().name("kubernetes".to_owned()).spawn(move || apart(&binary, program))?;
    check.join().unwrap_or_else(|_| bail!("panicked"))
}

fn apart(binary: &Path, program: PathBuf) -> Result<String> {
    let _switch = Switch::move_here()?;
    let etcd = Etcd::start("discovery-kubernetes-etcd", &[])?;
    let applications = Applications::start_at("discovery-kubernetes", address(HOST).into())?;
    let mut server = ApiServer::make(program, &etcd)?;
    server.start()?;
    for number in [0, 1] {
        server.create(number, applications.ports[number])?;
    }
    let ports = applications.ports;
    let discover = json!({"kubernetes": {
        "url": server.url(), "service": "web", "namespace": "default", "token_file": server.token_file(),
        "ca_file": server.folder.join("certificates/apiserver.crt"),
    }});
    let mut scene = Scene::start("discovery-kubernetes", binary, applications, &discover)?;
    scene.wait_for(&[0, 1])?;
    server.create(2, ports[2])?;
    scene.wait_for(&[0, 1, 2])?;
    server.set_ready(0, false)?;
    scene.wait_for(&[1, 2])?;
    server.delete(1)?;
    scene.wait_for(&[2])?;
    server.kill()?;
    scene.wait_until("sluice_discovery_failing", true)?;
    scene.wait_for(&[2])?;
    server.start()?;
    server.set_ready(0, true)?;
    scene.wait_for(&[0, 2])?;
    // A token that has been replaced, as Kubernetes does each hour, and one that it does not accept.
    fs::write(server.token_file(), "another")?;
    server.kill()?;
    server.start()?;
    scene.wait_until("sluice_discovery_failing", true)?;
    fs::write(server.token_file(), TOKEN)?;
    server.create(3, ports[3])?;
    scene.wait_for(&[0, 2, 3])?;
    let log = fs::read_to_string(scene.site.sluice.log())?;
    ensure!(!log.contains(TOKEN), "the log has the token");
    scene.finish()
}

/// An API server with its data in etcd.
struct ApiServer {
    program: PathBuf,
    folder: PathBuf,
    etcd: String,
    process: Option<Process>,
}

impl ApiServer {
    fn make(program: PathBuf, etcd: &Etcd) -> Result<Self> {
        let folder = workspace::scratch("operate")?.join("kubernetes");
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("tokens.csv"), format!("{TOKEN},sluice,1\n"))?;
        fs::write(folder.join("token"), TOKEN)?;
        let key = folder.join("accounts.key");
        let output =
            bound("openssl").args(["genrsa", "-out"]).arg(&key).arg("2048").output().context("openssl")?;
        ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr));
        Ok(Self { program, folder, etcd: etcd.urls().join(","), process: None })
    }

    fn token_file(&self) -> PathBuf {
        self.folder.join("token")
    }

    fn url(&self) -> String {
        format!("https://{}", SocketAddr::new(IpAddr::V4(address(HOST)), PORT))
    }

    fn start(&mut self) -> Result<()> {
        let mut command = bound(&self.program);
        let file = |name: &str| self.folder.join(name).display().to_string();
        let host = address(HOST);
        command.args([
            format!("--etcd-servers={}", self.etcd),
            format!("--advertise-address={host}"),
            format!("--bind-address={host}"),
            format!("--secure-port={PORT}"),
            format!("--cert-dir={}", file("certificates")),
            format!("--token-auth-file={}", file("tokens.csv")),
            "--authorization-mode=AlwaysAllow".to_owned(),
            "--anonymous-auth=false".to_owned(),
            "--service-cluster-ip-range=198.51.100.0/24".to_owned(),
            "--service-account-issuer=https://kubernetes.test".to_owned(),
            format!("--service-account-key-file={}", file("accounts.key")),
            format!("--service-account-signing-key-file={}", file("accounts.key")),
        ]);
        let log = workspace::scratch("logs")?.join("kube-apiserver.log");
        self.process = Some(Process::start("kube-apiserver", &mut command, log, Signal::SIGTERM)?);
        for _ in 0..TRIES {
            if self.ask("GET", "/readyz", None).is_ok() && self.ask("GET", SLICES, None).is_ok() {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("it is not ready\n{}", self.process.as_ref().map(Process::tail).unwrap_or_default())
    }

    /// Kills it as a power failure would.
    fn kill(&mut self) -> Result<()> {
        let process = self.process.take().context("it runs")?;
        Ok(kill(Pid::from_raw(i32::try_from(process.pid())?), Signal::SIGKILL)?)
    }

    /// Creates a slice with one endpoint.
    fn create(&self, number: usize, port: u16) -> Result<()> {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("web-{number}"), "labels": {"kubernetes.io/service-name": "web"}},
            "endpoints": [endpoint(true)],
            "ports": [{"name": "http", "protocol": "TCP", "port": port}],
        });
        self.ask("POST", SLICES, Some(&slice)).map(drop)
    }

    fn set_ready(&self, number: usize, is_ready: bool) -> Result<()> {
        let change = json!({"endpoints": [endpoint(is_ready)]});
        self.ask("PATCH", &format!("{SLICES}/web-{number}"), Some(&change)).map(drop)
    }

    fn delete(&self, number: usize) -> Result<()> {
        self.ask("DELETE", &format!("{SLICES}/web-{number}"), None).map(drop)
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<String> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let mut command = bound("curl");
        command.args(["--silent", "--show-error", "--fail-with-body", "--noproxy", "*", "--max-time", "10"]);
        command.args(["-X", method, "-H", &format!("authorization: Bearer {TOKEN}")]);
        command.args(["-H", &format!("content-type: {kind}"), "--cacert"]);
        command.arg(self.folder.join("certificates/apiserver.crt"));
        if let Some(body) = body {
            command.arg("-d").arg(body.to_string());
        }
        let output =
            command.arg(format!("{}{path}", self.url())).stdin(Stdio::null()).output().context("curl")?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(output.status.success(), "{method} {path}: {said}");
        Ok(said)
    }
}

fn endpoint(is_ready: bool) -> Value {
    json!({"addresses": [address(HOST).to_string()], "conditions": {"ready": is_ready}})
}
