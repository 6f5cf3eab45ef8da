//! The origin servers, from `bench/origins`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::unistd::geteuid;
use sluice_testkit::identity::Identity;
use sluice_testkit::nginx::temp_paths;
use sluice_testkit::pinned::PinnedTools;
use sluice_testkit::workspace::{must, root, scratch};

use super::postgres;
use super::scenario::Origin;
use super::server::{Server, session};
use super::tls::{Secured, Tls};

const FILES: &[(&str, usize)] = &[("1kb.bin", 1 << 10), ("64kb.bin", 64 << 10), ("1mb.bin", 1 << 20)];

impl Origin {
    /// The tools that it requires.
    pub(super) fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Nginx => &["nginx"],
            Self::Puma => &["puma"],
            Self::PinnedPuma => &["puma", "taskset"],
            Self::Go | Self::GoPages => &["go"],
            Self::NodePages => &["node"],
            Self::Starlette => &["starlette"],
            Self::Blacksheep => &["blacksheep"],
            Self::Postgres => &["pgbench"],
        }
    }
}

/// Starts an origin that listens on `address`, and with TLS on another address if given; it may use `folder`.
///
/// # Errors
/// It is not installed or does not start.
pub(super) fn start(
    origin: Origin,
    (address, secure): (SocketAddr, Option<&Secured>),
    folder: &Path,
    log: PathBuf,
    tools: &PinnedTools,
) -> Result<Server> {
    let sources = root().join("bench/origins");
    let mut command = match origin {
        Origin::Nginx => nginx((address, secure), folder, tools.path("nginx")?)?,
        Origin::Puma => puma(session(tools.path("puma")?), address, &sources.join("puma/config.ru")),
        Origin::PinnedPuma => {
            let mut command = session(tools.path("taskset")?);
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            command.args(["-c", &(cores - 1).to_string()]).arg(tools.path("puma")?);
            puma(command, address, &sources.join("puma/config.ru"))
        }
        Origin::Go => go(address, &sources.join("go"), "go-origin")?,
        Origin::GoPages => go(address, &sources.join("pages"), "go-pages")?,
        Origin::NodePages => node(address, &sources.join("pages/server.js"), tools.path("node")?),
        Origin::Starlette => uvicorn(address, "starlette_app:app", &sources, tools.path("starlette")?),
        Origin::Blacksheep => uvicorn(address, "blacksheep_app:app", &sources, tools.path("blacksheep")?),
        Origin::Postgres => return postgres::start(address, tools.path("pgbench")?, log),
    };
    Server::start(&format!("{origin:?}"), &mut command, log, address)
}

/// Settings that depend on nginx's build and user, for its configurations.
///
/// # Errors
/// nginx cannot be run.
pub(super) fn nginx_words(program: &Path) -> Result<Vec<(&'static str, String)>> {
    let output = Command::new(program).arg("-V").output().context("nginx -V")?;
    let built = String::from_utf8_lossy(&output.stderr).into_owned();
    let user = if geteuid().is_root() { "user root;" } else { "" };
    Ok(vec![("@USER@", user.to_owned()), ("@TEMP_PATHS@", temp_paths(&built))])
}

fn nginx(
    (address, secure): (SocketAddr, Option<&Secured>),
    folder: &Path,
    program: &Path,
) -> Result<Command> {
    let html = folder.join("html");
    fs::create_dir_all(&html)?;
    for (name, size) in FILES {
        let body: Vec<u8> = (0..*size).map(|i| (i * 31 + i / 251) as u8).collect();
        fs::write(html.join(name), body)?;
    }
    let mut text = fs::read_to_string(root().join("bench/origins/nginx/nginx.conf"))?;
    for (word, value) in nginx_words(program)? {
        text = text.replace(word, &value);
    }
    if let Some((address, Identity { certificate, key, .. }, tls)) = secure {
        let (certificate, key) = (certificate.display(), key.display());
        let tickets = if *tls == Tls::ClientsAnew { "ssl_session_tickets off;" } else { "" };
        let more = format!(
            "listen {address} ssl http2 backlog=4096; ssl_certificate {certificate}; ssl_certificate_key {key};\n        \
             {tickets} root @FOLDER@/html;"
        );
        text = text.replacen("root @FOLDER@/html;", &more, 1);
    }
    let text =
        text.replace("@FOLDER@", &folder.display().to_string()).replace("@ADDRESS@", &address.to_string());
    let config = folder.join("nginx.conf");
    fs::write(&config, text)?;
    let mut command = session(program);
    command.arg("-p").arg(folder).arg("-c").arg(config);
    Ok(command)
}

/// Four threads in one process: what the overload scenario is about, and enough for two cores.
fn puma(mut command: Command, address: SocketAddr, app: &Path) -> Command {
    command
        // `-C -`: ignore the user's configuration file.
        .args(["-C", "-", "--environment", "production", "--threads", "4:4"])
        .args(["--bind", &format!("tcp://{address}?backlog=4096")])
        .arg(app);
    command
}

fn go(address: SocketAddr, sources: &Path, name: &str) -> Result<Command> {
    let program = scratch("bench")?.join(name);
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(sources)
        .env("GOTOOLCHAIN", "local")
        .env("GOPROXY", "off")
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .env("CGO_ENABLED", "0");
    must(&mut build)?;
    let mut command = session(program);
    command.args(["-listen", &address.to_string()]);
    Ok(command)
}

fn node(address: SocketAddr, script: &Path, program: &Path) -> Command {
    let mut command = session(program);
    command.arg(script).args(["--listen", &address.to_string()]);
    command
}

/// One process, as uvicorn's documentation recommends below a process manager, without its access log.
fn uvicorn(address: SocketAddr, app: &str, sources: &Path, program: &Path) -> Command {
    let mut command = session(program);
    command
        .args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()])
        .args(["--no-access-log", "--log-level", "warning", "--backlog", "4096", "--app-dir"])
        .arg(sources.join("uvicorn"))
        .arg(app)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // BlackSheep is verbose about its environment otherwise.
        .env("APP_ENV", "production");
    command
}
