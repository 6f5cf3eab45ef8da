//! The proxies: sluice and its peers, each started from its configuration in `bench/peers`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sluice_testkit::identity::Identity;
use sluice_testkit::pinned::PinnedTools;
use sluice_testkit::process::free_ports;
use sluice_testkit::workspace::root;

use super::machine::cpus;
use super::server::{Server, session};
use super::tls::{self, Tls};

/// A proxy and the tools it requires. sluice comes first, then its variants.
pub(super) const PEERS: &[(&str, &[&str])] = &[
    (SLUICE, &[]),
    (BYPASS, &[]),
    (COPY, &[]),
    (BOTH, &[]),
    (TOKIO_URING, &[]),
    (EPOLL, &[]),
    (ONE_WORKER, &[]),
    (SPLICE, &[]),
    (AUTO, &[]),
    (NO_LIMIT, &[]),
    ("nginx", &["nginx"]),
    (NO_KEEP_ALIVE, &["nginx"]),
    (NO_RESUMPTION, &["nginx"]),
    (NGINX_NEWEST, &["nginx", NGINX_NEWEST]),
    ("haproxy", &["haproxy"]),
    (HAPROXY_NEWEST, &[HAPROXY_NEWEST]),
    (FIELDS, &["haproxy"]),
    ("envoy", &["envoy"]),
    ("caddy", &["caddy"]),
    ("kamal-proxy", &["go", "kamal-proxy"]),
    ("proxy.py", &["proxy.py"]),
];

/// The default configuration, with bypass and direct return.
pub(super) const SLUICE: &str = "sluice";
/// Variants: sluice without direct return, sluice that copies, and sluice that also joins its clients.
pub(super) const BYPASS: &str = "sluice-bypass";
const COPY: &str = "sluice-copy";
const BOTH: &str = "sluice-both";
/// sluice with its other engines.
const TOKIO_URING: &str = "sluice-tokio-uring";
const EPOLL: &str = "sluice-epoll";
/// For the variants that only copy, or only join.
const NO_DIRECT_RETURN: &str = "kernel.direct_return=off";
/// sluice with one worker, whatever the cores: what the second one adds, and what sharing costs.
const ONE_WORKER: &str = "sluice-one-worker";
/// sluice with tunnels spliced in the kernel.
const SPLICE: &str = "sluice-splice";
/// sluice that finds the limit itself, and sluice without one, to compare with the configured limit.
const AUTO: &str = "sluice-auto";
const NO_LIMIT: &str = "sluice-no-limit";
/// The newest that PyPI has of two that are otherwise Debian's.
const NGINX_NEWEST: &str = "nginx-newest";
const HAPROXY_NEWEST: &str = "haproxy-newest";
/// nginx without further configuration: a connection to the origin for each request.
const NO_KEEP_ALIVE: &str = "nginx-no-keepalive";
/// The same, with a full handshake for each.
const NO_RESUMPTION: &str = "nginx-no-resumption";
/// HAProxy that adds the same fields as sluice: each costs Puma several microseconds.
const FIELDS: &str = "haproxy-fields";

/// Whether it is sluice or a variant of it.
pub(super) fn is_sluice(name: &str) -> bool {
    name.starts_with("sluice")
}

/// Whether a proxy is measured in this mode.
pub(super) fn takes_part(name: &str, mode: Mode, tls: Tls) -> bool {
    if [NO_KEEP_ALIVE, NO_RESUMPTION].contains(&name) {
        return tls == Tls::Origin;
    }
    if tls != Tls::None && ![SLUICE, "nginx", NGINX_NEWEST, "haproxy", HAPROXY_NEWEST].contains(&name) {
        return false;
    }
    let only_there: &[&str] = match mode {
        Mode::Http => &[BYPASS, COPY, BOTH, TOKIO_URING, EPOLL, ONE_WORKER, NGINX_NEWEST],
        Mode::Limited(_) => &[AUTO, NO_LIMIT, FIELDS],
        Mode::Tcp => &[SPLICE],
    };
    let not_everywhere = [
        BYPASS,
        COPY,
        BOTH,
        TOKIO_URING,
        EPOLL,
        ONE_WORKER,
        // Its modules for plain TCP are not Debian's.
        NGINX_NEWEST,
        SPLICE,
        AUTO,
        NO_LIMIT,
        FIELDS,
    ];
    only_there.contains(&name) || !not_everywhere.contains(&name)
}

/// The task of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Forward requests.
    Http,
    /// Forward requests, at most this many at the same time.
    Limited(usize),
    /// Forward bytes.
    Tcp,
}

/// The environment of a proxy.
pub(super) struct Place<'a> {
    /// The address on which it listens.
    pub(super) listen: SocketAddr,
    /// The address to which it forwards.
    pub(super) origin: SocketAddr,
    /// The address of sluice's metrics; `None` for other proxies.
    pub(super) admin: Option<SocketAddr>,
    /// Its own folder.
    pub(super) folder: PathBuf,
    /// Its log.
    pub(super) log: PathBuf,
    /// Its task.
    pub(super) mode: Mode,
    /// Which side uses TLS to the proxy, and the certificate.
    pub(super) tls: (Tls, Option<&'a Identity>),
    /// The programs.
    pub(super) tools: &'a PinnedTools,
    /// The built sluice.
    pub(super) sluice: &'a Path,
}

/// Starts the proxy `name`.
///
/// # Errors
/// It cannot do the task, is not installed, or does not start.
pub(super) fn start(name: &str, place: &Place) -> Result<Server> {
    let mut command = match name {
        SLUICE => sluice(place, &[])?,
        BYPASS => with(sluice(place, &[])?, NO_DIRECT_RETURN),
        COPY => with(sluice(place, &[("@BYPASS@", "off")])?, NO_DIRECT_RETURN),
        BOTH => sluice(place, &[("@BYPASS@", "required"), ("@DOWNSTREAM@", "on")])?,
        TOKIO_URING => with(sluice(place, &[])?, "runtime=tokio_uring"),
        EPOLL => with(sluice(place, &[])?, "runtime=epoll"),
        ONE_WORKER => with(sluice(place, &[])?, "workers=1"),
        SPLICE => sluice(place, &[("@SPLICE@", "required")])?,
        AUTO => sluice(place, &[("@LIMIT@", "auto")])?,
        NO_LIMIT => sluice(place, &[("@LIMIT@", "off")])?,
        "nginx" | NGINX_NEWEST => nginx(name, place, KEEP_ALIVE, "on")?,
        NO_KEEP_ALIVE => nginx("nginx", place, "", "on")?,
        NO_RESUMPTION => nginx("nginx", place, "", "off")?,
        "haproxy" | HAPROXY_NEWEST => haproxy(name, place, "")?,
        FIELDS => {
            haproxy("haproxy", place, &fs::read_to_string(root().join("bench/peers/haproxy-fields.cfg"))?)?
        }
        "envoy" => envoy(place)?,
        "caddy" => caddy(place)?,
        "kamal-proxy" => kamal_proxy(place)?,
        "proxy.py" => proxy_py(place)?,
        _ => bail!("unknown peer {name}"),
    };
    let mut server = Server::start(name, &mut command, place.log.clone(), place.listen)?;
    if name == "kamal-proxy" {
        deploy(place, &mut server)?;
    }
    Ok(server)
}

impl Place<'_> {
    /// Fills in a configuration of `bench/peers` and returns the path of the copy.
    fn render(&self, template: &str, more: &[(&str, String)]) -> Result<PathBuf> {
        let file = root().join("bench/peers").join(template);
        let mut text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let limit = if let Mode::Limited(limit) = self.mode { limit } else { 0 };
        let known = [
            ("@LISTEN@", self.listen.to_string()),
            ("@LISTEN_PORT@", self.listen.port().to_string()),
            ("@ORIGIN@", self.origin.to_string()),
            ("@ORIGIN_PORT@", self.origin.port().to_string()),
            ("@FOLDER@", self.folder.display().to_string()),
            ("@CPUS@", cpus().to_string()),
            ("@LIMIT@", limit.to_string()),
        ];
        let secure = tls::words(self.tls.1, self.tls.0);
        for (word, value) in more.iter().chain(&known).chain(&secure) {
            text = text.replace(word, value);
        }
        let file = self.folder.join(template);
        fs::write(&file, text).with_context(|| file.display().to_string())?;
        Ok(file)
    }

    fn only_http(&self, name: &str) -> Result<()> {
        match self.mode {
            Mode::Http => Ok(()),
            Mode::Limited(_) => bail!("{name} has no queue for requests beyond a limit"),
            Mode::Tcp => bail!("{name} does not forward plain TCP here"),
        }
    }
}

/// sluice, with these words of its configuration replaced.
fn sluice(place: &Place, words: &[(&str, &str)]) -> Result<Command> {
    let template = match place.mode {
        Mode::Http => "sluice.yaml",
        Mode::Tcp => "sluice-tcp.yaml",
        Mode::Limited(_) => "sluice-limited.yaml",
    };
    let usual = [("@BYPASS@", "auto"), ("@DOWNSTREAM@", "off"), ("@SPLICE@", "auto")];
    let words: Vec<_> =
        words.iter().chain(&usual).map(|(word, value)| (*word, (*value).to_owned())).collect();
    let mut command = session(place.sluice);
    command.args(["run", "--config"]).arg(place.render(template, &words)?);
    if let Some(admin) = place.admin {
        command.arg("--set").arg(format!("admin={admin}"));
    }
    Ok(command)
}

/// The same with one key of its configuration set.
fn with(mut sluice: Command, key: &str) -> Command {
    sluice.args(["--set", key]);
    sluice
}

/// What nginx keeps of its connections to the origin.
const KEEP_ALIVE: &str = "keepalive 4000; keepalive_requests 10000000;";

/// nginx of this name among the tools, with these settings for idle connections to the origin and for session resumption.
fn nginx(name: &str, place: &Place, keep_alive: &str, resumption: &str) -> Result<Command> {
    let template = match place.mode {
        Mode::Http => "nginx.conf",
        Mode::Tcp => "nginx-stream.conf",
        Mode::Limited(_) => bail!("nginx has no queue for requests beyond max_conns"),
    };
    let program = place.tools.path(name)?;
    let mut more = super::origin::nginx_words(program)?;
    more.push(("@KEEPALIVE@", keep_alive.to_owned()));
    more.push(("@RESUMPTION@", resumption.to_owned()));
    if place.mode == Mode::Tcp {
        more.push(("@MODULE@", place.tools.path("nginx-stream")?.display().to_string()));
    }
    let config = place.render(template, &more)?;
    let mut command = session(program);
    command.arg("-p").arg(&place.folder).arg("-c").arg(config);
    Ok(command)
}

/// HAProxy of this name among the tools, with additional lines in its frontend.
fn haproxy(name: &str, place: &Place, frontend: &str) -> Result<Command> {
    let template = match place.mode {
        Mode::Http => "haproxy.cfg",
        Mode::Limited(_) => "haproxy-limited.cfg",
        Mode::Tcp => "haproxy-tcp.cfg",
    };
    let mut command = session(place.tools.path(name)?);
    command.args(["-db", "-f"]).arg(place.render(template, &[("@FRONTEND@", frontend.to_owned())])?);
    Ok(command)
}

fn envoy(place: &Place) -> Result<Command> {
    let config = match place.mode {
        Mode::Http => place.render("envoy.yaml", &[])?,
        Mode::Tcp => place.render("envoy-tcp.yaml", &[])?,
        Mode::Limited(_) => bail!("envoy queues connections, not single requests of HTTP/1.1"),
    };
    let mut command = session(place.tools.path("envoy")?);
    command
        .args(["--disable-hot-restart", "--log-level", "warn"])
        .args(["--concurrency", &cpus().to_string(), "--config-path"])
        .arg(config);
    Ok(command)
}

fn caddy(place: &Place) -> Result<Command> {
    place.only_http("caddy")?;
    let config = place.render("Caddyfile", &[])?;
    let mut command = session(place.tools.path("caddy")?);
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(config);
    // Otherwise certificates and saved state would go to the user's home folder.
    command.env("XDG_DATA_HOME", &place.folder).env("XDG_CONFIG_HOME", &place.folder);
    Ok(command)
}

fn kamal_proxy(place: &Place) -> Result<Command> {
    place.only_http("kamal-proxy")?;
    let [https] = free_ports(Ipv4Addr::LOCALHOST.into())?;
    let mut command = session(place.tools.path("kamal-proxy")?);
    command
        .args(["run", "--http-port", &place.listen.port().to_string()])
        .args(["--https-port", &https.to_string()])
        .env("HOME", &place.folder)
        .env("XDG_RUNTIME_DIR", &place.folder);
    Ok(command)
}

/// kamal-proxy gets its target while it runs.
fn deploy(place: &Place, server: &mut Server) -> Result<()> {
    let status = Command::new(place.tools.path("kamal-proxy")?)
        .args(["deploy", "bench", "--health-check-path", "/up"])
        .args(["--target", &place.origin.to_string()])
        .env("HOME", &place.folder)
        .env("XDG_RUNTIME_DIR", &place.folder)
        .output()?;
    let said = String::from_utf8_lossy(&status.stderr).into_owned();
    ensure!(status.status.success(), "kamal-proxy deploy: {said}\n{}", server.tail());
    Ok(())
}

fn proxy_py(place: &Place) -> Result<Command> {
    place.only_http("proxy.py")?;
    let mut command = session(place.tools.path("proxy.py")?);
    command
        .args(["--hostname", &place.listen.ip().to_string(), "--port", &place.listen.port().to_string()])
        .args(["--threaded", "--enable-reverse-proxy", "--plugins", "proxy_py_forward.Forward"])
        .args(["--num-acceptors", &cpus().to_string(), "--num-workers", &cpus().to_string()])
        .args(["--log-level", "WARNING", "--backlog", "4096", "--data-dir"])
        .arg(&place.folder)
        .env("PYTHONPATH", root().join("bench/peers"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("BENCH_ORIGIN", place.origin.to_string());
    Ok(command)
}
