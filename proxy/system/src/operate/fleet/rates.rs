//! A rate limit that three members count together.

use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::json;
use sluice_testkit::process::free_ports;

use super::super::client::Client;
use super::super::discovery::Applications;
use super::super::redis::Redis;
use super::super::site::{Site, local};

const MEMBERS: usize = 3;
/// Requests a second, and at once.
const RATE: u64 = 20;
/// How long a client asks all members.
const TIME: Duration = Duration::from_secs(10);
const BETWEEN: Duration = Duration::from_millis(10);

/// # Errors
/// The members serve about as much as without each other, or less than the rate.
pub(super) fn are_counted_together(binary: &Path) -> Result<String> {
    let redis = Redis::started()?;
    let applications = Applications::start("fleet-rates")?;
    let mut sites = Vec::new();
    for member in 0..MEMBERS {
        let [address] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
        let mut store = redis.store("rates:");
        store["member"] = json!(format!("web{member}"));
        let keys = json!({
            "store": store,
            "workers": 1,
            "listeners": [{"name": "web", "address": address}],
            "clusters": {"app": {"endpoints": [applications.address(0)]}},
            "rate_limits": {"all": {"rate": format!("{RATE}/1s"), "shared": true}},
            "routes": [{"cluster": "app", "rate_limits": ["all"]}],
        });
        sites.push(Site::start_at(&format!("fleet-rates-{member}"), binary, address, keys)?);
    }
    let begun = Instant::now();
    let served = thread::scope(|scope| {
        let clients = sites.iter().map(|site| scope.spawn(|| ask(site))).collect::<Vec<_>>();
        let served = clients.into_iter().map(|client| client.join().unwrap_or_else(|_| bail!("panicked")));
        served.sum::<Result<u64>>()
    })?;
    let exact = RATE * begun.elapsed().as_millis() as u64 / 1000;
    let alone = MEMBERS as u64 * (exact + RATE);
    // What no member knew in the first seconds, on a machine where each may be late.
    ensure!(served < exact + (alone - exact) * 3 / 4, "{served} were served; alone they would serve {alone}");
    ensure!(served >= exact / 2, "{served} were served, {exact} were allowed");
    for mut site in sites {
        site.sluice.stop()?;
    }
    Ok(format!("{served} served, {exact} by the rate, {alone} by members that count alone"))
}

fn ask(site: &Site) -> Result<u64> {
    let (begun, mut served) = (Instant::now(), 0);
    let mut client = Client::connect(site.address)?;
    while begun.elapsed() < TIME {
        let answer = client.get("/", false)?;
        match answer.status {
            200 => served += 1,
            429 => {}
            other => bail!("status {other}: {}", answer.text),
        }
        if answer.last {
            client = Client::connect(site.address)?;
        }
        thread::sleep(BETWEEN);
    }
    Ok(served)
}
