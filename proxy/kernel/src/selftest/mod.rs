//! The start-up self-test of the same-host bypass: every promise that applications rely on, tried on sockets of
//! our own, through the programs as they are loaded.
//!
//! Kernels differ in what a socket in a sockmap does, and have changed it between minor versions. So nothing is
//! believed of this kernel: what it gets wrong is found here, before a connection to an application is joined.
//! One thread drives both ends of each connection, without blocking, so that nothing depends on scheduling. The
//! counters of the programs are looked at too: plain TCP passes all of this, and would prove nothing.

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

/// For everything together; an idle machine takes a tenth of it at most.
const LIMIT: Duration = Duration::from_secs(2);

/// The check that also stands for connections that are not joined, wherever that is noticed.
const JOIN: &str = "join";

type Check = fn(&mut Trial<'_>) -> Checked;

/// By name, the simplest first, so that the name tells most. Names are stable: `sluice doctor --json` has them.
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

/// What a joined connection did that a connection must not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("check {check}: {found}")]
pub struct Failure {
    /// Which check: one stable word, such as `half_close`.
    pub check: &'static str,
    /// What was found, in one line, for people.
    pub found: String,
}

/// Tries the programs on connections over 127.0.0.1 and, where it is there, ::1. Blocks for some tens of
/// milliseconds, 2 s at most. Linux 5.19 or later, as the programs.
///
/// To be called before other connections are joined: the counters are all connections'.
///
/// # Errors
/// The first check that failed; the bypass must not be used then.
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

/// Tries direct return in the same way, over 127.0.0.1 and ::1, if there are slots: some milliseconds, 2 s at most.
///
/// # Errors
/// The first check that failed, `direct_return.` and its word; answers must come to sluice then, and bypass may be
/// used all the same.
pub fn run_direct(bypass: &Bypass, marker: &mut Marker) -> Result<(), Failure> {
    run_answers(bypass, marker, &answers::CHECKS)
}

/// Tries, after [`run_direct`], whether the kernel can keep a head until its body begins.
///
/// # Errors
/// As there. Linux before 6.12 takes no whole message off unless the mend was ported back.
pub fn run_holding(bypass: &Bypass, marker: &mut Marker) -> Result<(), Failure> {
    run_answers(bypass, marker, &answers::HOLDING)
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

/// Every check on connections that `pairs` makes.
fn try_all(pairs: &mut dyn Pairs, deadline: Deadline) -> Result<(), Failure> {
    let mut trial = Trial::new(pairs, deadline);
    for (name, check) in CHECKS {
        check(&mut trial).map_err(|found| found.at(name))?;
    }
    Ok(())
}
