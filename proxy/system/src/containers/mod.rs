//! The image in containers, as users run it: with the default settings of an engine, with minimal privileges, and with
//! everything sluice can use: `cargo xtask test containers`.

mod bundle;
mod kamal;
mod seccomp;

use anyhow::{Context, Result, ensure};
use bundle::{Container, Setting};
use nix::unistd::geteuid;
use serde_json::{Value, json};
use sluice_testkit::metrics;
use sluice_testkit::packages::Tools;
use sluice_testkit::process::find_program;
use sluice_testkit::tally::Tally;

use crate::apps;
use crate::image::{self, Built};

/// A check and its name.
type Check = (&'static str, fn(&Built) -> Result<String>);

const EVERYTHING: &str = "containers::with_everything";
/// Needs an ACME authority.
const KAMAL_HTTPS: &str = "containers::kamal_https";

/// Needs eBPF as well.
const NEIGHBOURS: &str = "containers::neighbours";

const CHECKS: [Check; 6] = [
    ("containers::by_default", by_default),
    ("containers::locked_down", locked_down),
    (EVERYTHING, with_everything),
    (NEIGHBOURS, neighbours),
    ("containers::kamal", kamal::plain),
    (KAMAL_HTTPS, kamal::https),
];

/// The ends of the link between two containers.
const LINK: [&str; 2] = ["10.199.0.1", "10.199.0.2"];
const REQUESTS: usize = 20;

const FILE: &str = "/etc/sluice/sluice.yaml";

/// Runs the requested checks; the image is built only then.
///
/// # Errors
/// When the image cannot be built.
pub(crate) fn run(debug: bool, tally: &mut Tally) -> Result<()> {
    if !CHECKS.iter().any(|(name, _)| tally.wants(name)) {
        return Ok(());
    }
    tally.heading("containers");
    let obstacle = match geteuid().is_root() {
        true => Tools::prepare().lack(&["crun", "curl", "ip", "nsenter", "python3", "strip"]),
        false => Some("containers need root here: try again with sudo".to_owned()),
    };
    if let Some(reason) = obstacle {
        tally.skip("containers", CHECKS.len(), &reason);
        return Ok(());
    }
    let built = image::build(debug)?;
    let no_bypass = apps::bypass_obstacle(&built.binary)?;
    for (name, check) in CHECKS {
        match &no_bypass {
            Some(reason) if [EVERYTHING, NEIGHBOURS].contains(&name) && tally.wants(name) => {
                tally.skip(name, 1, reason)
            }
            _ if name == KAMAL_HTTPS && tally.wants(name) && find_program("go").is_none() => {
                tally.skip(name, 1, "Pebble is built by go, which is missing");
            }
            _ => tally.check(name, || check(&built)),
        }
    }
    Ok(())
}

/// Like `docker run sluice`: the image's own file, without its application.
fn by_default(built: &Built) -> Result<String> {
    let container = Container::start("by-default", built, built.stage("sluice")?, &Setting::default())?;
    let status = container.status("http://127.0.0.1:8080/")?;
    ensure!(status == "502" || status == "503", "{status} without an application\n{}", container.log()?);
    let status_v6 = container.status("http://[::1]:8080/")?;
    ensure!(status_v6 == status, "{status_v6} over IPv6");
    container.exec(&["/usr/bin/sluice", "healthcheck", "--config", FILE])?;
    container.exec(&["/usr/bin/sluice", "check", "--config", FILE])?;
    serves_by(&container, "epoll")?;
    container.stop()?;
    Ok("healthy, with epoll".to_owned())
}

/// Nothing writable, no capabilities, a user namespace, no cgroup2.
fn locked_down(built: &Built) -> Result<String> {
    let setting = Setting {
        only_capabilities: Some(&[]),
        read_only: true,
        user_namespace: true,
        configuration: Some(with_demo(json!({}))),
        ..Setting::default()
    };
    let container = Container::start("locked-down", built, built.stage("sluice")?, &setting)?;
    let status = container.status("http://127.0.0.1:8080/")?;
    ensure!(status == "200", "{status}\n{}", container.log()?);
    container.exec(&["/usr/bin/sluice", "healthcheck", "--config", FILE])?;
    serves_by(&container, "epoll")?;
    container.stop()?;
    Ok("200, with epoll".to_owned())
}

/// Our seccomp profile and three capabilities, for the account of the image.
fn privileged(configuration: Value) -> Setting {
    Setting {
        own_seccomp: true,
        more_capabilities: &["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"],
        cgroup: true,
        configuration: Some(configuration),
        ..Setting::default()
    }
}

fn with_everything(built: &Built) -> Result<String> {
    let kernel = json!({"bypass": "required", "direct_return": "required"});
    let setting = privileged(with_demo(json!({"kernel": kernel, "runtime": "io_uring"})));
    let container = Container::start("everything", built, built.stage("sluice")?, &setting)?;
    let status = container.status("http://127.0.0.1:8080/")?;
    ensure!(status == "200", "{status}\n{}", container.log()?);
    let line = serves_by(&container, "io_uring")?;
    for assist in ["bypass", "direct_return"] {
        ensure!(line[assist] == "used", "{assist}: {line}");
    }
    container.stop()?;
    Ok("200, with io_uring, bypass and direct return".to_owned())
}

/// An application in another container, without privileges, connected by a link.
fn neighbours(built: &Built) -> Result<String> {
    let application = Setting { configuration: Some(with_demo(json!({}))), ..Setting::default() };
    let application = Container::start("application", built, built.stage("sluice")?, &application)?;
    let front = with_demo(json!({
        "clusters": {"app": {"endpoints": [format!("{}:8080", LINK[1])]}},
        "kernel": {"bypass": "required", "direct_return": "required"},
    }));
    let front = Container::start("front", built, built.stage("sluice")?, &privileged(front))?;
    front.link(&application, LINK)?;
    ensure!(application.status("http://127.0.0.1:8080/")? == "200", "{}", application.log()?);
    for _ in 0..REQUESTS {
        let status = front.status("http://127.0.0.1:8080/")?;
        ensure!(status == "200", "{status}\n{}", front.log()?);
    }
    let metrics = front.within("curl", &["-s", "--max-time", "60", "http://127.0.0.1:9901/metrics"])?;
    let joined = metrics::sum(&metrics, "sluice_bypass_pairs_joined_total");
    ensure!(joined > 0, "no connection is joined\n{metrics}");
    front.stop()?;
    application.stop()?;
    Ok(format!("{REQUESTS} answers, {joined} connections joined across containers"))
}

/// The log line with the engine.
fn serves_by(container: &Container, engine: &str) -> Result<Value> {
    let log = container.log()?;
    let says = format!("serving with {engine}");
    let line =
        log.lines().find(|line| line.contains(&says)).with_context(|| format!("not {says}:\n{log}"))?;
    serde_json::from_str(line).with_context(|| line.to_owned())
}

fn with_demo(more: Value) -> Value {
    let mut configuration = json!({
        "listeners": [{"address": "[::]:8080"}],
        "clusters": {"app": {"endpoints": ["127.0.0.1:3000"]}},
        "demo_origin": "127.0.0.1:3000",
        "admin": "127.0.0.1:9901",
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        configuration[key] = value.clone();
    }
    configuration
}
