//! The start-up self-test of the same-host bypass. It tests every property that applications rely on, on sluice's own
//! sockets, with the loaded programs.
//!
//! Kernels differ in how a socket in a sockmap behaves, and the behaviour has changed between minor versions. So sluice
//! assumes nothing about this kernel: the self-test finds errors before a connection to an application is joined. One
//! thread drives both ends of each connection without blocking, so that nothing depends on scheduling. The test also
//! checks the programs' counters, because plain TCP would pass everything and prove nothing.

mod bounds;
mod answers;
mod direct;
mod ends;
mod flow;
mod pairs;
mod queue;
mod sockets;
mod streams;
#[cfg(test)]
mod tests;
mod trial;
mod wait;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::program::{Bypass, Marker};
use direct::Exchanges;
use pairs::Pairs;
use sockets::Sockets;
use trial::{Checked, Found, Trial};
use wait::Deadline;

/// Time limit for everything together. An idle machine takes at most a tenth of it.
const LIMIT: Duration = Duration::from_secs(2);

/// The check that also covers connections that are not joined, wherever that is detected.
const JOIN: &str = "join";

type Check = fn(&mut Trial<'_>) -> Checked;

/// By name, simplest first, so that the name is most informative. Names are stable: `sluice doctor --json` prints them.
const CHECKS: [(&str, Check); 12] = [
    (JOIN, streams::join),
    ("echo", streams::echo),
    ("order", streams::order),
    ("close", ends::close),
    ("half_close", ends::half_close),
    ("fionread", queue::fionread),
    ("peek", queue::peek),
    ("edge", queue::edge),
    ("reset", ends::reset),
    ("slow_reader", bounds::slow_reader),
    ("transfer", streams::transfer),
    ("stranger", bounds::stranger),
];

/// A joined connection did something that a connection must not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("check {check}: {found}")]
pub struct Failure {
    /// The check, as a stable keyword such as `half_close`.
    pub check: &'static str,
    /// What was found, in one line for people.
    pub found: String,
}

/// Tests the programs on connections over 127.0.0.1 and, if available, ::1. Blocks for some tens of milliseconds, at
/// most 2 s. Linux 5.19 or later, like the programs.
///
/// Call it before other connections are joined, because the counters include all connections.
///
/// # Errors
/// The first check that failed. The bypass must then not be used.
pub fn run(bypass: &Bypass, marker: &mut Marker) -> Result<(), Failure> {
    let deadline = Deadline::after(LIMIT);
    let mut tried = false;
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let sockets = Sockets::on(address, bypass, marker).map_err(|found| found.at(JOIN))?;
        if let Some(mut sockets) = sockets {
            try_all(&mut sockets, deadline)?;
            tried = true;
        }
    }
    if tried { Ok(()) } else { Err(Found::new("this host has neither 127.0.0.1 nor ::1").at(JOIN)) }
}

/// Tests direct return in the same way, over 127.0.0.1 and ::1, if there are slots: some milliseconds, at most 2 s.
///
/// # Errors
/// The first check that failed: `direct_return.` and its keyword. Responses must then go through sluice; the bypass may
/// still be used.
pub fn run_direct(bypass: &Bypass, marker: &mut Marker) -> Result<(), Failure> {
    run_answers(bypass, marker, &answers::CHECKS)
}

/// Tests, after [`run_direct`], whether the kernel can keep a head until its body begins.
///
/// # Errors
/// The errors of [`run_direct`]. Linux before 6.12 cannot remove a whole message, unless the fix was backported.
pub fn run_holding(bypass: &Bypass, marker: &mut Marker) -> Result<(), Failure> {
    run_answers(bypass, marker, &answers::HOLDING)
}

/// Tests, after [`run_direct`], whether the program can add a line to a head.
///
/// # Errors
/// The errors of [`run_direct`].
pub fn run_adding(bypass: &Bypass, marker: &mut Marker) -> Result<(), Failure> {
    run_answers(bypass, marker, &answers::ADDING)
}

fn run_answers(
    bypass: &Bypass,
    marker: &mut Marker,
    checks: &[(&'static str, answers::Check)],
) -> Result<(), Failure> {
    let Some(slots) = bypass.slots() else {
        return Ok(());
    };
    let deadline = Deadline::after(LIMIT);
    for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let exchanges = Exchanges::on(address, bypass, slots, marker, deadline);
        if let Some(mut exchanges) = exchanges.map_err(|found| found.at(direct::CONNECT))? {
            for (name, check) in checks {
                check(&mut exchanges).map_err(|found| found.at(name))?;
            }
        }
    }
    Ok(())
}

/// Runs every check on connections that `pairs` creates.
fn try_all(pairs: &mut dyn Pairs, deadline: Deadline) -> Result<(), Failure> {
    let mut trial = Trial::new(pairs, deadline);
    for (name, check) in CHECKS {
        check(&mut trial).map_err(|found| found.at(name))?;
    }
    Ok(())
}
