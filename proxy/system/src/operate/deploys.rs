//! Deploys of real Puma versions, one after the other, under load.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_testkit::metrics;
use sluice_testkit::process::free_ports;

use super::load::{Crowd, FEW, Judge, Load, MANY};
use super::puma::{DEPLOYS, FLAGS, Puma};
use super::site::{Site, local};

const ROUNDS: usize = 50;
/// Versions that run at once: the serving one, and the next.
const RUNNING: usize = 2;
/// Responses to our own clients between two deploys.
const BETWEEN: u64 = 40;
const PAUSE: Duration = Duration::from_secs(5);

/// The deploy of each port.
#[derive(Default)]
struct Book {
    deploys: Mutex<BTreeMap<u16, u64>>,
    /// The last completed deploy; earlier ones are drained.
    done: AtomicU64,
}

impl Book {
    fn begin(&self, deploy: u64, port: u16) {
        self.deploys.lock().unwrap_or_else(PoisonError::into_inner).insert(port, deploy);
    }
}

impl Judge for Book {
    fn least(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    fn number(&self, text: &str) -> Result<u64> {
        let port = text.trim().split_once(' ').and_then(|(_, port)| port.parse().ok());
        let port: u16 = port.with_context(|| format!("response {text:?}"))?;
        let deploys = self.deploys.lock().unwrap_or_else(PoisonError::into_inner);
        deploys
            .get(&port)
            .copied()
            .with_context(|| format!("response from port {port}, which was not deployed"))
    }
}

/// sluice, the deployed versions, and the clients.
struct Scene {
    site: Site,
    book: Arc<Book>,
    versions: Vec<Puma>,
    booted: usize,
    /// Requests that a port had received when it was drained.
    drained: BTreeMap<u16, u64>,
}

impl Scene {
    fn start(name: &str, binary: &Path, keys: Value) -> Result<Self> {
        let site = Site::start(name, binary, keys)?;
        let mut scene =
            Self { site, book: Arc::default(), versions: Vec::new(), booted: 0, drained: BTreeMap::new() };
        for _ in 0..RUNNING {
            let puma = scene.boot()?;
            scene.versions.push(puma);
        }
        Ok(scene)
    }

    fn boot(&mut self) -> Result<Puma> {
        self.booted += 1;
        Puma::boot(&self.site, "deploys", self.booted)
    }

    /// Deploys one of the versions, at its next port.
    fn deploy(&self, number: usize, version: usize, port: u16) -> Result<()> {
        let deploy = u64::try_from(number)?;
        self.book.begin(deploy, port);
        let line = format!("deploy app --target 127.0.0.1:{port} {FLAGS}");
        self.site.must(&line).with_context(|| format!("deploy {deploy}, version {version}"))?;
        self.book.done.store(deploy, Ordering::Release);
        Ok(())
    }

    /// Drained ports have received no requests since, from anyone.
    fn check_drained(&self, version: usize) -> Result<()> {
        let counts = self.versions[version].counts()?;
        for port in self.versions[version].ports {
            let Some(then) = self.drained.get(&port) else { continue };
            let now = counts.get(&port).copied().unwrap_or(0);
            ensure!(now == *then, "port {port} had {then} requests when it was drained, and {now} later");
        }
        Ok(())
    }
}

/// Fifty in a row. The two running versions alternate, and each is replaced by a new one after its tenth deploy.
pub(super) fn fifty_in_a_row(binary: &Path) -> Result<String> {
    fifty(&mut Scene::start("deploys", binary, json!({}))?, "deploys", MANY)
}

/// The same with direct return, which most responses must use.
pub(super) fn fifty_past_sluice(binary: &Path) -> Result<String> {
    let [admin] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
    let keys = json!({
        "kernel": {"bypass": "required", "direct_return": "required"},
        "admin": admin,
    });
    let mut scene = Scene::start("deploys-direct", binary, keys)?;
    let said = fifty(&mut scene, "deploys-direct", FEW)?;
    let text = metrics::read(admin)?;
    // The numbers of removed endpoints disappear; these totals stay.
    let all = metrics::sum(&text, "sluice_path_exchanges_total");
    let direct = metrics::sum(&text, "sluice_direct_return_exchanges_total");
    // The first response on a connection does not use it, nor do the first ones of an endpoint.
    ensure!(direct > all / 2, "only {direct} of {all} responses used direct return");
    Ok(format!("{said}; {direct} of {all} responses used direct return"))
}

fn fifty(scene: &mut Scene, name: &str, crowd: Crowd) -> Result<String> {
    scene.deploy(0, 0, scene.versions[0].ports[0])?;
    let mut load = Load::start(name, crowd, &scene.site, Arc::clone(&scene.book))?;
    load.wait_for(BETWEEN)?;
    let (mut serving, mut slowest) = (scene.versions[0].ports[0], Duration::ZERO);
    for number in 1..=ROUNDS {
        let (version, turn) = (number % RUNNING, number / RUNNING % DEPLOYS);
        if number >= RUNNING && turn == 0 {
            // Drained by the previous deploy, so it can be stopped.
            scene.check_drained(version)?;
            scene.versions[version].stop()?;
            scene.versions[version] = scene.boot()?;
        }
        let (port, begun) = (scene.versions[version].ports[turn], Instant::now());
        scene.deploy(number, version, port)?;
        slowest = slowest.max(begun.elapsed());
        let other = (version + 1) % RUNNING;
        let count = scene.versions[other].counts()?.get(&serving).copied().unwrap_or(0);
        ensure!(count > 0, "port {serving} got no requests");
        scene.drained.insert(serving, count);
        serving = port;
        load.wait_for(BETWEEN).with_context(|| format!("after deploy {number}"))?;
    }
    (0..RUNNING).try_for_each(|version| scene.check_drained(version))?;
    let (booted, slowest) = (scene.booted, slowest.as_millis());
    Ok(format!("{ROUNDS} deploys of {booted} versions, the slowest {slowest} ms: {}", load.finish()?))
}

/// Targets that do not become healthy are not used, and the command prints the result of the last check.
pub(super) fn never_healthy(binary: &Path) -> Result<String> {
    let mut scene = Scene::start("deploys-sick", binary, json!({}))?;
    scene.deploy(0, 0, scene.versions[0].ports[0])?;
    scene.versions[1].wait_ready()?;
    let mut load = Load::start("deploys-sick", MANY, &scene.site, Arc::clone(&scene.book))?;
    load.wait_for(BETWEEN)?;
    let target = scene.versions[1].ports[0];
    let flags = format!("{FLAGS} --deploy-timeout 5s");
    let refused = |line: &str, why: &str| {
        let outcome = scene.site.run(line)?;
        ensure!(outcome.code == Some(1) && outcome.said.contains(why), "{line}: {outcome:?}");
        Ok(outcome.said)
    };
    let said = refused(
        &format!("deploy app --target 127.0.0.1:{target} {flags} --health-check-path /sick"),
        &format!("127.0.0.1:{target}: status 503"),
    )?;
    load.wait_for(BETWEEN)?;
    scene.versions[1].stop()?;
    refused(&format!("deploy app --target 127.0.0.1:{target} {flags}"), "Connection refused")?;
    load.wait_for(BETWEEN)?;
    let list = scene.site.must("list")?;
    ensure!(list.contains(&format!("127.0.0.1:{}", scene.versions[0].ports[0])), "{list}");
    Ok(format!("{:?}; meanwhile {}", said.trim_end(), load.finish()?))
}

/// Requests wait for the end of a pause, and are served then.
pub(super) fn pause(binary: &Path) -> Result<String> {
    let scene = Scene::start("pause", binary, json!({}))?;
    scene.deploy(0, 0, scene.versions[0].ports[0])?;
    let mut load = Load::start("pause", MANY, &scene.site, Arc::clone(&scene.book))?;
    load.wait_for(BETWEEN)?;
    scene.site.must("pause app")?;
    let before = (scene.versions[0].counts()?, load.answers());
    std::thread::sleep(PAUSE);
    let after = (scene.versions[0].counts()?, load.answers());
    // A client counts its response after it has arrived.
    let late = after.1 - before.1;
    ensure!(
        before.0 == after.0 && late <= load.clients(),
        "requests while paused: {before:?}, then {after:?}"
    );
    scene.site.must("resume app")?;
    load.wait_for(BETWEEN)?;
    Ok(format!("{} s without requests: {}", PAUSE.as_secs(), load.finish()?))
}
