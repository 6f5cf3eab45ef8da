//! Applications that leave the sending of their files to sluice, as they do it with their own libraries: `cargo xtask
//! test sendfile`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use sluice_testkit::process::{Process, bound, free_ports};
use sluice_testkit::{pinned, workspace};

use super::site::{Site, local};

const NAME: &str = "a stored file.bin";
/// The same in a URL.
const PATH: &str = "a%20stored%20file.bin";
const BYTES: usize = 300_000;

/// sluice in front of an application with a folder of files.
struct Scene {
    site: Site,
    content: Vec<u8>,
    /// Last, so that it is stopped after sluice.
    _application: Process,
}

/// An answer as curl shows it.
struct Answer {
    status: String,
    /// In lower case.
    head: String,
    body: Vec<u8>,
}

impl Scene {
    fn start(binary: &Path, name: &str, command: impl FnOnce(SocketAddr) -> Result<Command>) -> Result<Self> {
        let storage = workspace::scratch("operate")?.join(format!("sendfile-{name}-storage"));
        fs::create_dir_all(&storage)?;
        let content: Vec<u8> = (0..BYTES).map(|at| (at * 7 % 251) as u8).collect();
        fs::write(storage.join(NAME), &content)?;
        let [address] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
        let mut command = command(address)?;
        command.env("STORAGE", &storage).env("PYTHONDONTWRITEBYTECODE", "1").current_dir(&storage);
        let log = workspace::scratch("logs")?.join(format!("sendfile-{name}.log"));
        let mut application = Process::start(name, &mut command, log, Signal::SIGTERM)?;
        application.wait_ready(address)?;
        let keys = json!({
            "clusters": {"default": {"endpoints": [address]}},
            "routes": [{
                "cluster": "default",
                "sendfile": {"roots": [storage], "accel": {"/protected": storage}},
            }],
        });
        let site = Site::start(&format!("sendfile-{name}"), binary, keys)?;
        Ok(Self { site, content, _application: application })
    }

    fn ask(&self, path: &str, arguments: &[&str]) -> Result<Answer> {
        let head = self.site.folder.join("head");
        let mut command = bound("curl");
        command
            .args(["-s", "--max-time", "20", "-w", "%{stderr}%{http_code}", "-D"])
            .arg(&head)
            .args(arguments);
        let output = command.arg(format!("http://{}{path}", self.site.address)).output()?;
        let head = fs::read_to_string(&head)?.to_lowercase();
        let status = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(Answer { status, head, body: output.stdout })
    }

    /// The file, its parts and conditions, and what must not be sent.
    fn check(&self, prefix: &str) -> Result<()> {
        let path = format!("{prefix}/{PATH}");
        let whole = self.ask(&path, &[])?;
        ensure!(whole.status == "200" && whole.body == self.content, "{path}: {}", whole.head);
        ensure!(whole.head.contains("content-type: application/x-stored"), "{}", whole.head);
        for hidden in ["x-sendfile", "x-accel", "from the application"] {
            ensure!(!whole.head.contains(hidden), "{}", whole.head);
        }
        let etag =
            whole.head.lines().find_map(|line| line.strip_prefix("etag: ")).context(whole.head.clone())?;
        let same = self.ask(&path, &["-H", &format!("If-None-Match: {etag}")])?;
        ensure!(same.status == "304" && same.body.is_empty(), "{}", same.head);
        let part = self.ask(&path, &["-H", "Range: bytes=1000-1999"])?;
        ensure!(part.status == "206" && part.body == self.content[1000..2000], "{}", part.head);
        let head = self.ask(&path, &["-I", "-o", "/dev/null"])?;
        ensure!(head.head.contains(&format!("content-length: {BYTES}")), "{}", head.head);
        // What a client says of it counts for nothing.
        let claim = ["-H", "X-Accel-Mapping: /=/etc/", "-H", "X-Sendfile-Type: X-Lighttpd-Send-File"];
        let claimed = self.ask(&path, &claim)?;
        ensure!(claimed.status == "200" && claimed.body == self.content, "{}", claimed.head);
        let outside = self.ask("/outside", &[])?;
        ensure!(outside.status == "502" && !outside.body.starts_with(b"root:"), "{}", outside.head);
        Ok(())
    }
}

fn sources() -> PathBuf {
    workspace::root().join("bench/origins/sendfile")
}

/// Rack::Sendfile on Puma, by both fields.
pub(super) fn rack(binary: &Path) -> Result<String> {
    let scene = Scene::start(binary, "rack", |address| {
        let mut command = bound("puma");
        command.args(["-C", "-", "--environment", "production", "--threads", "1:1"]);
        command.args(["--bind", &format!("tcp://{address}")]).arg(sources().join("config.ru"));
        Ok(command)
    })?;
    scene.check("")?;
    scene.check("/accel")?;
    Ok("X-Sendfile and X-Accel-Redirect".to_owned())
}

/// django-sendfile2, by both fields.
pub(super) fn django(binary: &Path) -> Result<String> {
    for backend in ["xsendfile", "nginx"] {
        let scene = Scene::start(binary, &format!("django-{backend}"), |address| {
            let mut command = uvicorn("django", "django_app:application", address)?;
            command.env("BACKEND", backend);
            Ok(command)
        })?;
        scene.check("")?;
    }
    Ok("X-Sendfile and X-Accel-Redirect".to_owned())
}

/// Starlette, which has no library for it.
pub(super) fn starlette(binary: &Path) -> Result<String> {
    let start = |address| uvicorn("starlette", "starlette_app:app", address);
    Scene::start(binary, "starlette", start)?.check("")?;
    Ok("X-Sendfile".to_owned())
}

fn uvicorn(tool: &str, application: &str, address: SocketAddr) -> Result<Command> {
    let mut command = bound(pinned::tool(tool)?);
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    command.args(["--host", &ip, "--port", &port, "--no-access-log", "--log-level", "warning", "--app-dir"]);
    command.arg(sources()).arg(application);
    Ok(command)
}
