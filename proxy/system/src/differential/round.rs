//! Runs the cases of requests against the strict origin, then those of which it accepted something against real
//! servers.

use super::mismatch::Mismatch;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::Plan;
use super::answers;
use super::client::{self, End, Heard};
use super::findings::{Findings, spread};
use super::finds::{self, Find};
use super::grammar::{self, Case};
use super::origin::Origin;
use super::proxy::{Proxy, Under, token};
use super::report::shown;
use super::requests::{self, Passed};
use super::seen::{self, Taken};
use super::sent::{self, Request};
use super::servers::ServerKind;

/// Earlier finds first, then the cases of the plan.
pub(super) struct Round {
    plan: Plan,
    finds: Vec<Find>,
    /// What the strict origin accepted of each.
    taken: Mutex<Taken>,
}

impl Round {
    /// The cases of a plan.
    ///
    /// # Errors
    /// When the file of finds is malformed.
    pub(super) fn new(plan: Plan) -> Result<Self> {
        Ok(Self { plan, finds: finds::requests()?, taken: Mutex::new(BTreeMap::new()) })
    }

    fn len(&self) -> u64 {
        self.finds.len() as u64 + self.plan.cases
    }

    fn case(&self, nth: u64) -> (String, Case) {
        let find = usize::try_from(nth).ok().and_then(|nth| self.finds.get(nth));
        let index = nth.saturating_sub(self.finds.len() as u64);
        match find {
            Some(find) => (find.name.clone(), Case::whole(find.bytes.clone())),
            None => (format!("case {index}"), grammar::requests(self.plan.seed, index)),
        }
    }

    /// Every case against the strict origin.
    ///
    /// # Errors
    /// When something cannot be started, or there are faults.
    pub(super) fn strict(&self, under: &Under<'_>) -> Result<String> {
        let token = token();
        let origin = Origin::start(&token)?;
        let proxy = Proxy::start(under, "strict", origin.address(), &token)?;
        let findings = Findings::default();
        spread(self.len(), |nth| self.judge(nth, proxy.address, &origin, &findings));
        for stray in origin.take_strays() {
            findings.fault("at the origin", &stray);
        }
        for (client, mut left) in origin.take_all() {
            // A request answered after its head may be stored after its client has been refused.
            left.retain(|arrived| arrived.is_whole);
            if left.is_empty() {
                continue;
            }
            let text = format!("{} requests arrived after the connection had ended", left.len());
            findings.fault(&client.to_string(), &text);
        }
        findings.verdict().and_then(|note| proxy.joined(note)).map_err(|error| proxy.explain(&error))
    }

    fn judge(&self, nth: u64, proxy: SocketAddr, origin: &Origin, findings: &Findings) {
        let from = client::address(nth);
        let (name, case) = self.case(nth);
        let heard = match client::run(from, proxy, &case) {
            Ok(heard) => heard,
            Err(error) => return findings.fault(&name, &format!("{error:#}")),
        };
        let arrived = origin.take(from);
        match requests::judge(&case.bytes, proxy, &arrived, &heard) {
            Ok(passed) => count(passed, findings),
            Err(fault) => findings.fault(&name, &told(&fault, &case, &heard)),
        }
        if !arrived.is_empty() {
            // Everything the case contains: whether sluice closes before its end depends on the origin's responses.
            let requests = sent::read(&case.bytes).requests;
            self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(from, requests);
        }
    }

    /// Sends one case to a real server, which should respond or close.
    fn ask(&self, nth: u64, proxy: SocketAddr, taken: &[Request], findings: &Findings) {
        let (name, case) = self.case(nth);
        match client::run(client::address(nth), proxy, &case) {
            Ok(heard) if heard.end == End::Silent => {
                findings.fault(&name, &told(&"the connection was not closed".into(), &case, &heard));
            }
            Ok(heard) => count_refusals(&heard, taken, findings),
            Err(error) => findings.fault(&name, &format!("{error:#}")),
        }
    }

    /// The cases of which the strict origin accepted something, against a real server.
    ///
    /// # Errors
    /// When something cannot be started, or its application saw something that was not forwarded.
    pub(super) fn real(&self, kind: &ServerKind, under: &Under<'_>) -> Result<String> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(!taken.is_empty(), "the strict origin has accepted nothing");
        let token = token();
        let (mut server, address) = kind.start()?;
        let under = &Under { server: Some(kind), ..*under };
        let mut proxy = Proxy::start(under, kind.short_name(), address, &token)?;
        let findings = Findings::default();
        spread(self.len(), |nth| {
            if let Some(requests) = taken.get(&client::address(nth)) {
                self.ask(nth, proxy.address, requests, &findings);
            }
        });
        // Some servers wait long for open connections.
        proxy.stop()?;
        // Its output is complete when it has exited.
        let _ = server.stop()?;
        let log = std::fs::read(server.log()).with_context(|| server.log().display().to_string())?;
        let bytes = |client| shown(&self.case(client::index(client)).1.bytes);
        let expected =
            seen::Expected { taken: &taken, token: &token, keeps_target: kind.keeps_target, bytes: &bytes };
        expected.compare(&String::from_utf8_lossy(&log), &findings);
        findings.verdict().and_then(|note| proxy.joined(note)).map_err(|error| proxy.explain(&error))
    }
}

/// Counts what a server refused of what the strict origin accepted. Servers may differ in this.
fn count_refusals(heard: &Heard, taken: &[Request], findings: &Findings) {
    let methods: Vec<&[u8]> = taken.iter().map(|request| &request.method[..]).collect();
    for answer in answers::read(&heard.bytes, &methods).answers.iter().take(taken.len()) {
        let is_its_own = !answer.fields.iter().any(|field| field.is("x-sluice-reason"));
        if is_its_own && answer.status != 200 {
            findings.count(&format!("answered {}", answer.status), 1);
        }
    }
}

fn count(passed: Passed, findings: &Findings) {
    findings.count("forwarded", passed.forwarded as u64);
    if let Some(status) = passed.refused {
        findings.count(&format!("refused {status}"), 1);
    }
    findings.count("of them by choice", u64::from(passed.is_strict));
}

/// A fault with everything needed to repeat it.
fn told(fault: &Mismatch, case: &Case, heard: &Heard) -> String {
    format!(
        "{fault}\n  sent, in writes that end at {:?}\n    {}\n  response ({:?})\n    {}",
        case.cuts,
        shown(&case.bytes),
        heard.end,
        shown(&heard.bytes)
    )
}
