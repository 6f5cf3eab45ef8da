//! The report as text. Decides nothing.

use std::fmt::{self, Write};

use sluice_config::Word;

use super::assists::Verdict;
use super::{Finding, Report, Status};

/// The whole report.
pub(super) fn report(report: &Report) -> String {
    let mut text = String::new();
    // Writing to text does not fail.
    let _ = write(report, &mut text);
    text
}

fn write(report: &Report, out: &mut String) -> fmt::Result {
    let config = report.config.as_deref().unwrap_or("no configuration file: defaults");
    writeln!(out, "sluice {}, {config}", env!("CARGO_PKG_VERSION"))?;
    for area in &report.areas {
        writeln!(out, "\n{}", area.name)?;
        for finding in &area.findings {
            line(out, finding)?;
        }
    }
    writeln!(out, "\nassists")?;
    for assist in report.assists.all() {
        verdict(out, assist)?;
    }
    let lacking = report.lacking();
    if lacking.is_empty() {
        return writeln!(out, "\nok: everything that sluice and its configuration require is available");
    }
    writeln!(out, "\nnot ok: required but missing: {}", lacking.join(", "))
}

fn line(out: &mut String, finding: &Finding) -> fmt::Result {
    write!(out, "  {:<8} {}: {}", finding.status.word(), finding.name, finding.means)?;
    match &finding.remedy {
        Some(remedy) if finding.status != Status::Ok => writeln!(out, "; {remedy}"),
        _ => writeln!(out),
    }
}

fn verdict(out: &mut String, assist: &Verdict) -> fmt::Result {
    let (name, mode) = (assist.name, assist.mode.word());
    if assist.is_used() {
        return writeln!(out, "  used     {name} ({mode})");
    }
    let host = match assist.host_can {
        Some(true) => "; this host supports it",
        _ => "",
    };
    writeln!(out, "  unused   {name} ({mode}): {}{host}", assist.why())
}
