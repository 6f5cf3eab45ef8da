//! `sluice doctor`: what this host supports, what it is needed for, and how to change it.
//!
//! This module judges; `kernel::probe` and `ring` only report. Nothing is changed. If no finding rules out bypass, its
//! programs are loaded, tested on sluice's own sockets, and removed again.

mod assists;
mod bpf;
mod host;
mod limits;
mod text;
mod trial;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};
use sluice_config::{Config, Word};
use sluice_kernel::probe::{Host, Sources};
use sluice_ring::RingError;

use crate::runtime;
pub(crate) use assists::Assists;
pub(crate) use trial::{note, note_direct};

/// All findings.
#[derive(Debug)]
pub struct Report {
    /// The configuration file; `None` stands for the defaults.
    config: Option<String>,
    areas: Vec<Area>,
    assists: Assists,
}

/// Findings on one topic.
#[derive(Debug)]
struct Area {
    name: &'static str,
    findings: Vec<Finding>,
}

/// The state of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// Available, but it limits sluice.
    Limited,
    /// Not available.
    Missing,
}

/// One finding. Names and values are stable; texts may change.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    pub(crate) status: Status,
    /// The value that was read, for programs.
    value: Value,
    /// What it means for sluice.
    pub(crate) means: String,
    /// How to change it, if something should be changed.
    pub(crate) remedy: Option<String>,
    /// A consequence of another finding, which is the one to act on.
    follows: bool,
}

impl Finding {
    fn ok(name: &'static str, value: impl Into<Value>, means: impl Into<String>) -> Self {
        let (value, means) = (value.into(), means.into());
        Self { name, status: Status::Ok, value, means, remedy: None, follows: false }
    }

    fn limited(self, remedy: impl Into<String>) -> Self {
        Self { status: Status::Limited, remedy: Some(remedy.into()), ..self }
    }

    fn missing(self, remedy: impl Into<String>) -> Self {
        Self { status: Status::Missing, remedy: Some(remedy.into()), ..self }
    }

    /// Missing as a consequence of something else that is missing.
    fn missing_too(self) -> Self {
        Self { status: Status::Missing, follows: true, ..self }
    }
}

/// What sluice requires: area and finding.
const REQUIRED: [(&str, &str); 3] = [("kernel", "release"), ("io_uring", "ring"), ("io_uring", "operations")];

/// Examines this host for `config` as read from `file`, or for the defaults. Tests the assists that are not off: takes
/// 0.2 s, at most 3 s.
pub fn examine(config: &Config, file: Option<String>) -> Report {
    let sources = Sources::host();
    let ring = runtime::probe(config.runtime, &sources.proc);
    let mut report = judge(config, file, &Host::probe(&sources), &ring);
    if report.assists.may_bypass() {
        trial::bypass(&mut report.assists, config);
    }
    if report.assists.splices() {
        trial::splice(&mut report.assists, config, runtime::likely(config.runtime, &ring));
    }
    if report.assists.bars() {
        trial::bans(&mut report.assists, config);
    }
    if report.assists.chooses_workers() {
        trial::accept(&mut report.assists, config);
    }
    report
}

/// The findings of a running sluice, each with its area. Nothing is tested, and bpf(2) is called only if the start
/// called it: some seccomp filters kill processes that do.
pub(crate) fn at_start(config: &Config, assists: &Assists) -> Vec<(&'static str, Finding)> {
    let sources = Sources::host();
    let asked = assists.asked_host();
    let host = if asked { Host::probe(&sources) } else { Host::read(&sources) };
    // Like bpf(2), io_uring is probed only if the start used it.
    let ring = runtime::probe(config.runtime, &sources.proc);
    let areas = areas(config, &host, &ring).into_iter().filter(|area| asked || area.name != "bpf");
    areas.flat_map(|area| area.findings.into_iter().map(move |finding| (area.name, finding))).collect()
}

/// The report on a host.
fn judge(config: &Config, file: Option<String>, host: &Host, ring: &Result<(), RingError>) -> Report {
    let areas = areas(config, host, ring);
    let assists = Assists::judge(config, &areas);
    Report { config: file, areas, assists }
}

fn areas(config: &Config, host: &Host, ring: &Result<(), RingError>) -> Vec<Area> {
    vec![
        Area { name: "kernel", findings: host::kernel(config.runtime, host) },
        Area { name: "io_uring", findings: host::io_uring(config.runtime, ring) },
        Area { name: "capabilities", findings: host::capabilities(host) },
        Area { name: "cgroups", findings: host::cgroups(host) },
        Area { name: "bpf", findings: bpf::bpf(host) },
        Area { name: "limits", findings: limits::limits(config, host) },
    ]
}

fn find<'a>(areas: &'a [Area], (area, name): (&str, &str)) -> Option<&'a Finding> {
    areas.iter().find(|one| one.name == area)?.findings.iter().find(|finding| finding.name == name)
}

impl Report {
    /// Whether everything that sluice and its configuration require is available.
    pub fn is_well(&self) -> bool {
        self.lacking().is_empty()
    }

    /// What is required and missing, as `area.name`, or `kernel.bypass` for an assist.
    fn lacking(&self) -> Vec<String> {
        let missing = |place: &&(&str, &str)| {
            find(&self.areas, **place).is_some_and(|finding| finding.status == Status::Missing)
        };
        let mut lacking: Vec<String> =
            REQUIRED.iter().filter(missing).map(|(area, name)| format!("{area}.{name}")).collect();
        lacking.extend(self.assists.lacking().map(|name| format!("kernel.{name}")));
        lacking
    }

    /// For people: one section per area, one line per finding.
    pub fn to_text(&self) -> String {
        text::report(self)
    }

    /// For programs: one object with stable keys and keywords.
    pub fn to_json(&self) -> Value {
        let mut areas = Map::new();
        for area in &self.areas {
            let findings = area.findings.iter().map(|finding| (finding.key(), finding.to_json()));
            areas.insert(area.name.to_owned(), Value::Object(findings.collect()));
        }
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "config": self.config,
            "ok": self.is_well(),
            "lacking": self.lacking(),
            "areas": areas,
            "assists": self.assists.to_json(),
        })
    }
}

impl Finding {
    /// Its name in JSON, where capabilities are in lower case too.
    fn key(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    fn to_json(&self) -> Value {
        json!({
            "status": self.status.word(),
            "value": self.value,
            "means": self.means,
            "remedy": self.remedy,
        })
    }
}

impl Word for Status {
    const ALL: &'static [Self] = &[Self::Ok, Self::Limited, Self::Missing];

    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}
