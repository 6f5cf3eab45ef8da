//! A rate limit that three members count together.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use sluice_testkit::metrics;
use sluice_testkit::process::free_ports;

use super::super::client::Client;
use super::super::discovery::Applications;
use super::super::etcd::TRIES;
use super::super::redis::Redis;
use super::super::site::{Site, local};

const MEMBERS: usize = 3;
/// Requests a second, and at once.
const RATE: u64 = 20;
/// How long a client asks all members.
const TIME: Duration = Duration::from_secs(10);
const BETWEEN: Duration = Duration::from_millis(10);

/// Members with one application.
struct Fleet {
    members: Vec<(Site, SocketAddr)>,
    _applications: Applications,
}

/// What all members have served together, and what the rate allows in that time.
struct Served {
    requests: u64,
    by_rate: u64,
}

impl Fleet {
    fn start(name: &str, binary: &Path, redis: &Redis, shared: Value) -> Result<Self> {
        let applications = Applications::start(name)?;
        let mut members = Vec::new();
        for member in 0..MEMBERS {
            let [address, admin] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
            let mut store = redis.store(&format!("{name}:"));
            store["member"] = json!(format!("web{member}"));
            let keys = json!({
                "store": store,
                "workers": 1,
                "admin": {"address": admin},
                "listeners": [{"name": "web", "address": address}],
                "clusters": {"app": {"endpoints": [applications.address(0)]}},
                "rate_limits": {"all": {
                    "rate": format!("{RATE}/1s"), "shared": shared, "exact_timeout": "5s",
                }},
                "routes": [{"cluster": "app", "rate_limits": ["all"]}],
            });
            let site = Site::start_at(&format!("{name}-{member}"), binary, address, keys)?;
            members.push((site, admin));
        }
        Ok(Self { members, _applications: applications })
    }

    /// A client of each member asks all the time.
    fn ask(&self) -> Result<Served> {
        let begun = Instant::now();
        let requests = thread::scope(|scope| {
            let ask = |(site, _): &'_ (Site, _)| ask(site.address);
            let clients = self.members.iter().map(|one| scope.spawn(move || ask(one))).collect::<Vec<_>>();
            let served =
                clients.into_iter().map(|client| client.join().unwrap_or_else(|_| bail!("panicked")));
            served.sum::<Result<u64>>()
        })?;
        Ok(Served { requests, by_rate: RATE * begun.elapsed().as_millis() as u64 / 1000 })
    }

    /// Requests that members have counted alone.
    fn alone(&self) -> Result<u64> {
        let of = |admin| Ok(metrics::sum(&metrics::read(admin)?, "sluice_rate_limit_alone_total"));
        self.members.iter().map(|(_, admin)| of(*admin)).sum()
    }

    /// Waits until a request of each member counts with the others, or alone.
    fn wait_until_alone(&self, is_alone: bool) -> Result<()> {
        for _ in 0..TRIES {
            // All of a moment ago is used up, and has come back.
            thread::sleep(Duration::from_millis(1000 / RATE));
            let before = self.alone()?;
            for (site, _) in &self.members {
                Client::connect(site.address)?.get("/", true)?;
            }
            let wanted = if is_alone { MEMBERS as u64 } else { 0 };
            if self.alone()? - before == wanted {
                return Ok(());
            }
        }
        bail!("members count alone: {}", !is_alone)
    }

    fn stop(self) -> Result<()> {
        self.members.into_iter().try_for_each(|(mut site, _)| site.sluice.stop().map(drop))
    }
}

/// # Errors
/// The members serve about as much as without each other, or less than the rate.
pub(super) fn are_counted_together(binary: &Path) -> Result<String> {
    let mut redis = Redis::started()?;
    let fleet = Fleet::start("fleet-rates", binary, &redis, json!(true))?;
    let Served { requests, by_rate } = fleet.ask()?;
    fleet.stop()?;
    let alone = MEMBERS as u64 * (by_rate + RATE);
    // What no member knew in the first seconds, on a machine where each may be late.
    let most = by_rate + (alone - by_rate) * 3 / 4;
    ensure!(requests < most, "{requests} were served; alone they would serve {alone}");
    ensure!(requests >= by_rate / 2, "{requests} were served, {by_rate} were allowed");
    let exact = are_counted_exactly(binary, &mut redis)?;
    Ok(format!("{requests} served, {by_rate} by the rate, {alone} by members that count alone; {exact}"))
}

fn are_counted_exactly(binary: &Path, redis: &mut Redis) -> Result<String> {
    let fleet = Fleet::start("fleet-exact-rates", binary, redis, json!("exact"))?;
    fleet.wait_until_alone(false)?;
    let Served { requests, by_rate } = fleet.ask()?;
    let burst = RATE;
    ensure!(requests <= by_rate + burst, "{requests} were served exactly, {by_rate} and {burst} are allowed");
    ensure!(requests >= by_rate / 2, "{requests} were served exactly, {by_rate} were allowed");
    // Without it, all requests are answered.
    redis.kill()?;
    fleet.wait_until_alone(true)?;
    redis.start()?;
    fleet.wait_until_alone(false)?;
    fleet.stop()?;
    Ok(format!("exactly, {requests} of {by_rate} with a burst of {burst}"))
}

fn ask(address: SocketAddr) -> Result<u64> {
    let (begun, mut served) = (Instant::now(), 0);
    let mut client = Client::connect(address)?;
    while begun.elapsed() < TIME {
        let answer = client.get("/", false)?;
        match answer.status {
            200 => served += 1,
            429 => {}
            other => bail!("status {other}: {}", answer.text),
        }
        if answer.last {
            client = Client::connect(address)?;
        }
        thread::sleep(BETWEEN);
    }
    Ok(served)
}
