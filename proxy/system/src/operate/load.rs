//! Steady load on a site: wrk, whose connections are kept, and our own clients, which check each response.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::Signal;
use sluice_testkit::process::{Process, bound};
use sluice_testkit::workspace;

use super::client::Client;
use super::site::{HOST, Site};

/// The clients.
#[derive(Clone, Copy)]
pub(super) struct Crowd {
    /// Connections of wrk.
    wrk: usize,
    /// Our own clients that keep their connection.
    kept: usize,
    /// Our own clients with a new connection for each request.
    once: usize,
}

/// More than an application has threads, so that some requests always wait in the queue.
pub(super) const MANY: Crowd = Crowd { wrk: 8, kept: 3, once: 3 };
/// So few that no request waits in the queue, which would prevent direct return.
pub(super) const FEW: Crowd = Crowd { wrk: 1, kept: 1, once: 1 };

const POLL: Duration = Duration::from_millis(5);
const TRIES: u32 = 12_000;

/// What responses must be. They are numbered, and the numbers must not decrease.
pub(super) trait Judge: Send + Sync + 'static {
    /// The smallest valid number for the response to a request sent now.
    fn least(&self) -> u64;

    /// The number of a response.
    ///
    /// # Errors
    /// When it is not a valid one.
    fn number(&self, text: &str) -> Result<u64>;
}

/// Load that continues until it is stopped.
pub(super) struct Load {
    wrk: Process,
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Result<()>>>,
    crowd: Crowd,
    since: Instant,
}

impl Load {
    /// Starts it.
    ///
    /// # Errors
    /// When wrk cannot start.
    pub(super) fn start(name: &str, crowd: Crowd, site: &Site, judge: Arc<impl Judge>) -> Result<Self> {
        let mut command = bound("wrk");
        // It prints its report when it is interrupted.
        command.args(["-t1", "-d3600s", "--timeout", "30s", "-H", &format!("Host: {HOST}")]);
        command.arg(format!("-c{}", crowd.wrk));
        command.arg(format!("http://{}/", site.address));
        let log = workspace::scratch("logs")?.join(format!("{name}-wrk.log"));
        let wrk = Process::start("wrk", &mut command, log, Signal::SIGINT)?;
        let (stop, answers) = (Arc::default(), Arc::default());
        let clients = (0..crowd.kept + crowd.once).map(|number| {
            let (address, kept) = (site.address, number < crowd.kept);
            let (stop, answers, judge) = (Arc::clone(&stop), Arc::clone(&answers), Arc::clone(&judge));
            thread::spawn(move || client(address, kept, &*judge, &stop, &answers))
        });
        let clients = clients.collect();
        Ok(Self { wrk, stop, answers, clients, crowd, since: Instant::now() })
    }

    /// Waits until `more` further requests of our own clients have been answered.
    ///
    /// # Errors
    /// When a client has failed, or they wait too long.
    pub(super) fn wait_for(&mut self, more: u64) -> Result<()> {
        let wanted = self.answers() + more;
        for _ in 0..TRIES {
            if self.clients.iter().any(JoinHandle::is_finished) {
                return self.verdict();
            }
            if self.answers() >= wanted {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("the clients are waiting for responses");
    }

    /// Responses to our own clients so far.
    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Number of our own clients.
    pub(super) fn clients(&self) -> u64 {
        (self.crowd.kept + self.crowd.once) as u64
    }

    /// Stops it. None may have failed; returns how many were answered.
    ///
    /// # Errors
    /// The first failure.
    pub(super) fn finish(mut self) -> Result<String> {
        self.wrk.stop().context("wrk")?;
        self.verdict()?;
        let report = fs::read_to_string(self.wrk.log())?;
        let requests = judge_report(&report).with_context(|| report.clone())?;
        let (own, seconds) = (self.answers(), self.since.elapsed().as_secs_f64());
        Ok(format!("{requests} requests of wrk and {own} of our own in {seconds:.1} s, 0 failed"))
    }

    fn verdict(&mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let ends =
            self.clients.drain(..).map(|client| client.join().unwrap_or_else(|_| Err(anyhow!("panicked"))));
        let failures: Vec<anyhow::Error> = ends.filter_map(Result::err).collect();
        match failures.first() {
            None => Ok(()),
            Some(first) => bail!("{} clients have failed, the first: {first:#}", failures.len()),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // The threads are not waited for: each ends with its request.
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn client(
    address: SocketAddr,
    kept: bool,
    judge: &impl Judge,
    stop: &AtomicBool,
    answers: &AtomicU64,
) -> Result<()> {
    let (mut client, mut before) = (Client::connect(address)?, 0);
    while !stop.load(Ordering::Relaxed) {
        let least = judge.least();
        let answer = client.get("/", !kept)?;
        ensure!(answer.status == 200, "status {}: {}", answer.status, answer.text);
        let number = judge.number(&answer.text)?;
        ensure!(number >= least, "response {number}, which was drained when {least} was deployed");
        ensure!(number >= before, "response {number} after {before} on one connection");
        answers.fetch_add(1, Ordering::Relaxed);
        before = number;
        if answer.last {
            (client, before) = (Client::connect(address)?, 0);
        }
    }
    Ok(())
}

/// The number of requests in wrk's report. It prints lines about failures only if there were some.
fn judge_report(report: &str) -> Result<u64> {
    for line in ["Non-2xx or 3xx responses", "Socket errors"] {
        ensure!(!report.contains(line), "{line}");
    }
    let requests = report.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok());
    requests.filter(|requests| *requests > 0).context("no requests")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_report_with_failures_or_nothing_is_refused() {
        let good = "  100 requests in 2.00s, 3KB read\nRequests/sec:  50.00\n";
        assert_eq!(judge_report(good).unwrap(), 100);
        for bad in ["  Socket errors: connect 0, read 1", "  Non-2xx or 3xx responses: 4"] {
            assert!(judge_report(&format!("{good}{bad}\n")).is_err());
        }
        assert!(judge_report("  0 requests in 2.00s\n").is_err());
    }
}
