//! Runs the cases of responses: for each, a client requests the case's bytes, then a normal response.

use super::mismatch::Mismatch;
use std::net::SocketAddr;

use anyhow::Result;

use super::Plan;
use super::client::{self, Heard};
use super::findings::{Findings, spread};
use super::finds;
use super::grammar::{self, Case};
use super::offered;
use super::proxy::{Proxy, Under, token};
use super::report::shown;
use super::responses::{self, Passed};
use super::turncoat::{CASE_PATH, Ending, Script, Turncoat};

/// Varies between clients.
const METHODS: [&str; 6] = ["GET", "GET", "GET", "HEAD", "POST", "GET"];

/// One case.
struct Trip {
    name: String,
    nth: u64,
    method: &'static str,
    version: &'static str,
    /// Whether both requests are sent at once.
    pipelined: bool,
    script: Script,
}

/// Earlier finds first, then the cases of the plan.
///
/// # Errors
/// When something cannot be started, or there are faults.
pub(super) fn responses(plan: Plan, under: &Under<'_>) -> Result<String> {
    let token = token();
    let origin = Turncoat::start(&token)?;
    let proxy = Proxy::start(under, "responses", origin.address(), &token)?;
    let findings = Findings::default();
    let finds = finds::responses()?;
    let known = finds.len() as u64;
    spread(known + plan.cases, |nth| {
        let find = usize::try_from(nth).ok().and_then(|nth| finds.get(nth));
        let case = find.map(|find| (find.name.clone(), Case::whole(find.bytes.clone())));
        run(&trip(plan, nth, known, case), proxy.address, &origin, &findings);
    });
    for stray in origin.take_strays() {
        findings.fault("at the origin", &stray);
    }
    findings.verdict().and_then(|note| proxy.joined(note)).map_err(|error| proxy.explain(&error))
}

fn trip(plan: Plan, nth: u64, known: u64, find: Option<(String, Case)>) -> Trip {
    let index = nth.saturating_sub(known);
    let mut rng = grammar::dice(plan.seed, index);
    let method = METHODS[rng.usize(..METHODS.len())];
    let version = if rng.u8(..8) == 0 { "HTTP/1.0" } else { "HTTP/1.1" };
    let pipelined = rng.bool();
    let dice = rng.u8(..);
    let (name, case) = match find {
        Some(find) => find,
        None => (format!("case {index}"), grammar::response(&mut rng, index)),
    };
    let case = surplus_at_once(case, method);
    let ending = ending(&case, method, dice);
    Trip { name, nth, method, version, pipelined, script: Script { case, ending } }
}

/// Sends the bytes after a complete response in the same write as its end. If they arrive later, they cannot be
/// distinguished from the response to the next request.
fn surplus_at_once(mut case: Case, method: &str) -> Case {
    if let Ok(offered) = offered::read(&case.bytes, method.as_bytes(), false) {
        let end = case.bytes.len() - offered.surplus;
        case.cuts.retain(|cut| *cut < end);
    }
    case
}

/// What the origin does after the case. It only waits if something ends the wait: after a response that sluice can
/// consider complete.
fn ending(case: &Case, method: &str, dice: u8) -> Ending {
    let is_whole = offered::read(&case.bytes, method.as_bytes(), false).is_ok();
    match dice {
        0..160 if is_whole => Ending::Open,
        0..230 => Ending::Close,
        _ => Ending::Reset,
    }
}

fn run(trip: &Trip, proxy: SocketAddr, origin: &Turncoat, findings: &Findings) {
    let from = client::address(trip.nth);
    origin.prepare(from, trip.script.clone());
    let heard = client::converse(from, proxy, &requests(trip), trip.pipelined);
    let own = origin.settle(from);
    let heard = match heard {
        Ok(heard) => heard,
        Err(error) => return findings.fault(&trip.name, &format!("{error:#}")),
    };
    match responses::judge(&trip.script, trip.method.as_bytes(), own, &heard) {
        Ok(Passed::Same) => findings.count("forwarded", 1),
        Ok(Passed::Refused) => findings.count("refused", 1),
        Ok(Passed::RefusedByChoice) => findings.count("refused by choice", 1),
        Ok(Passed::Cut) => findings.count("cut", 1),
        Err(fault) => findings.fault(&trip.name, &told(trip, &fault, &heard)),
    }
}

/// The request for the case's bytes, and the next one.
fn requests(trip: &Trip) -> [Vec<u8>; 2] {
    let Trip { method, version, .. } = trip;
    let body = if *method == "POST" { "Content-Length: 4\r\n\r\nbody" } else { "\r\n" };
    let connection = if *version == "HTTP/1.0" { "Connection: keep-alive\r\n" } else { "" };
    let first = format!("{method} {CASE_PATH} {version}\r\nHost: a\r\n{connection}{body}");
    [first.into_bytes(), b"GET /own HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()]
}

/// A fault with everything needed to repeat it.
fn told(trip: &Trip, fault: &Mismatch, heard: &Heard) -> String {
    format!(
        "{fault}\n  requested by {} {}{}; the origin sent, in writes that end at {:?}, then {:?}\n    {}\n  \
         received ({:?})\n    {}",
        trip.method,
        trip.version,
        if trip.pipelined { ", pipelined" } else { "" },
        trip.script.case.cuts,
        trip.script.ending,
        shown(&trip.script.case.bytes),
        heard.end,
        shown(&heard.bytes)
    )
}
