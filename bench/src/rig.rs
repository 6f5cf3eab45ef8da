//! One origin and every proxy in front of it, all running and checked.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustls::ClientConfig;
use sluice_testkit::identity::Identity;
use sluice_testkit::pinned::PinnedTools;
use sluice_testkit::process::free_ports;
use sluice_testkit::workspace::scratch;

use super::client::{Client, get};
use super::neighbour::Neighbour;
use super::peers::{self, Mode};
use super::scenario::{Case, Origin, Work};
use super::server::Server;
use super::tls::{Secured, Tls};
use super::{check, origin, postgres};

/// The column without a proxy.
pub(super) const DIRECT: &str = "direct";

/// More consecutive fast responses than the origin has threads, so that each thread is idle.
const REST_PROBES: u32 = 8;
const REST_TRIES: u32 = 1000;
const REST_FACTOR: u32 = 4;
const REST_MARGIN: Duration = Duration::from_millis(20);

/// Equipment shared by all cases.
pub(super) struct Equipment {
    /// Proxies to measure, sluice first.
    pub(super) peers: Vec<&'static str>,
    /// Programs.
    pub(super) tools: PinnedTools,
    /// The built sluice.
    pub(super) sluice: PathBuf,
}

impl Equipment {
    /// The proxies that are measured in a case.
    pub(super) fn peers_in(&self, case: &Case) -> impl Iterator<Item = &'static str> {
        let mode = mode(case);
        self.peers.iter().copied().filter(move |name| peers::takes_part(name, mode, case.tls))
    }

    /// Number of columns: direct, and every proxy.
    pub(super) fn columns(&self, case: &Case) -> u64 {
        1 + self.peers_in(case).count() as u64
    }
}

/// A target of requests.
pub(super) struct Proxy {
    /// `direct`, `sluice` or a peer.
    pub(super) name: String,
    /// The address on which it listens.
    pub(super) address: SocketAddr,
    /// `None` for direct.
    pub(super) server: Option<Server>,
    /// The address of sluice's metrics; `None` for other proxies.
    pub(super) admin: Option<SocketAddr>,
}

/// A running case.
pub(super) struct Rig {
    /// Dropped before the origin, so that no proxy is left without its origin.
    pub(super) proxies: Vec<Proxy>,
    /// The origin server.
    pub(super) origin: Server,
    /// The address on which it listens.
    pub(super) origin_address: SocketAddr,
    /// The address of its TLS listener and its certificate, if the case uses one.
    secure: Option<Secured>,
    /// Its response time when idle; `None` for a database.
    at_rest: Option<Duration>,
    /// Requests per second that are due, if they are sent at fixed times.
    pub(super) rate: Option<f64>,
    /// Loops that keep every core busy, if the case uses them.
    pub(super) neighbours: Vec<Neighbour>,
    /// For files of a measurement.
    pub(super) folder: PathBuf,
    /// Hash of the body in all responses.
    pub(super) body_sha256: Option<String>,
    /// Proxies that did not start or sent a wrong response, and why.
    pub(super) refused: BTreeMap<String, String>,
}

impl Rig {
    /// Starts and checks everything. A proxy that fails is excluded and recorded.
    ///
    /// # Errors
    /// The origin does not start, or its response is wrong.
    pub(super) fn start(case: &Case, equipment: &Equipment) -> Result<Self> {
        let folder = empty(scratch("bench")?.join(&case.name))?;
        let logs = scratch("logs")?;
        let origin_address = free_address()?;
        let log = logs.join(format!("bench-{}-origin.log", case.name));
        let own = empty(folder.join("origin"))?;
        let secure = match case.tls {
            Tls::None => None,
            tls => Some((free_address()?, Identity::make(&folder, equipment.tools.path("openssl")?)?, tls)),
        };
        let addresses = (origin_address, secure.as_ref());
        let origin = origin::start(case.origin, addresses, &own, log, &equipment.tools)?;
        let mut rig = Self {
            proxies: Vec::new(),
            origin,
            origin_address,
            secure,
            at_rest: None,
            rate: None,
            neighbours: Vec::new(),
            folder,
            body_sha256: None,
            refused: BTreeMap::new(),
        };
        // The address that clients would use without a proxy.
        let address = match (&rig.secure, case.tls) {
            (Some((address, ..)), tls) if tls.is_to_clients() => *address,
            _ => origin_address,
        };
        let direct = Proxy { name: DIRECT.to_owned(), address, server: None, admin: None };
        rig.admit(case, direct, &equipment.tools).context("the origin itself")?;
        if case.origin != Origin::Postgres {
            rig.at_rest = Some(rig.probe(case)?);
        }
        for name in equipment.peers_in(case) {
            let log = logs.join(format!("bench-{}-{name}.log", case.name));
            if let Err(error) = rig.add(name, case, log, equipment) {
                let reason = format!("{error:#}");
                println!("{}: {name} is not measured: {reason}", case.name);
                rig.refused.insert(name.to_owned(), reason);
            }
        }
        Ok(rig)
    }

    /// Waits until the origin responds as fast as when idle.
    ///
    /// Requests that a load generator drops at its end stay in a proxy and the origin for a while: up to ten seconds
    /// with Puma. They would distort the next measurement.
    ///
    /// # Errors
    /// It does not become idle.
    pub(super) fn settle(&self, case: &Case) -> Result<()> {
        let Some(at_rest) = self.at_rest else { return Ok(()) };
        let fast = at_rest * REST_FACTOR + REST_MARGIN;
        let mut in_a_row = 0;
        for _ in 0..REST_TRIES {
            in_a_row = if self.probe(case)? <= fast { in_a_row + 1 } else { 0 };
            if in_a_row == REST_PROBES {
                return Ok(());
            }
        }
        bail!("the origin does not become idle")
    }

    /// The TLS configuration of our clients, if clients use TLS.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub(super) fn client(&self) -> Result<Option<Arc<ClientConfig>>> {
        self.secure.as_ref().map(|(_, identity, _)| identity.client()).transpose()
    }

    /// The time until the origin's response on a new connection.
    fn probe(&self, case: &Case) -> Result<Duration> {
        let from = Instant::now();
        let request = get(self.origin_address, &case.path, "close");
        Client::connect(self.origin_address)?.ask(&request).context("the origin, between measurements")?;
        Ok(from.elapsed())
    }

    fn add(&mut self, name: &str, case: &Case, log: PathBuf, equipment: &Equipment) -> Result<()> {
        let place = peers::Place {
            listen: free_address()?,
            origin: match (&self.secure, case.tls) {
                (Some((address, ..)), Tls::Origin) => *address,
                _ => self.origin_address,
            },
            tls: (case.tls, self.secure.as_ref().map(|(_, identity, _)| identity)),
            admin: peers::is_sluice(name).then(free_address).transpose()?,
            folder: empty(self.folder.join(name))?,
            log,
            mode: mode(case),
            tools: &equipment.tools,
            sluice: &equipment.sluice,
        };
        let server = peers::start(name, &place)?;
        let proxy =
            Proxy { name: name.to_owned(), address: place.listen, server: Some(server), admin: place.admin };
        self.admit(case, proxy, &equipment.tools)
    }

    /// Adds a proxy if its response equals the origin's.
    fn admit(&mut self, case: &Case, proxy: Proxy, tools: &PinnedTools) -> Result<()> {
        let answer = self.answer(case, proxy.address, tools);
        let hash = answer.map_err(|error| anyhow!("wrong response: {error:#}{}", tail(&proxy)))?;
        match &self.body_sha256 {
            Some(right) => ensure!(*right == hash, "wrong response: body {hash} instead of {right}"),
            None => self.body_sha256 = Some(hash),
        }
        self.proxies.push(proxy);
        Ok(())
    }

    /// The hash of the response: of a body, or of a query's result.
    fn answer(&self, case: &Case, address: SocketAddr, tools: &PinnedTools) -> Result<String> {
        match case.origin {
            Origin::Postgres => {
                let query = "select md5(string_agg(aid::text, ',' order by aid)) from pgbench_accounts";
                postgres::ask(address, tools.path("pgbench")?, query)
            }
            _ => {
                let keep_alive = !matches!(case.work, Work::Http { keep_alive: false, .. });
                let url = case.url(address);
                check::body_hash(&url, keep_alive, &self.folder, tools)
            }
        }
    }
}

/// The end of a proxy's log, on separate lines.
fn tail(proxy: &Proxy) -> String {
    proxy.server.as_ref().map(|server| format!("\n{}", server.tail())).unwrap_or_default()
}

fn mode(case: &Case) -> Mode {
    match (case.work, case.limit) {
        (Work::Postgres { .. }, _) => Mode::Tcp,
        (_, Some(limit)) => Mode::Limited(limit),
        (_, None) => Mode::Http,
    }
}

fn free_address() -> Result<SocketAddr> {
    let [port] = free_ports(Ipv4Addr::LOCALHOST.into())?;
    Ok((Ipv4Addr::LOCALHOST, port).into())
}

fn empty(folder: PathBuf) -> Result<PathBuf> {
    let named = |folder: &Path| folder.display().to_string();
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| named(&folder))?;
    }
    fs::create_dir_all(&folder).with_context(|| named(&folder))?;
    Ok(folder)
}
