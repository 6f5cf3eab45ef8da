//! Measured cases as Markdown: medians, ratios with their spread, and marks.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::compare;
use super::number::number;
use super::peers::SLUICE;
use super::record::{CaseRecord, Figure, Mark};
use super::rig::DIRECT;
use super::stats::spread;

const ROWS: &[Figure] = &[
    Figure::RequestsPerSecond,
    Figure::P50Us,
    Figure::P90Us,
    Figure::P99Us,
    Figure::P999Us,
    Figure::P9999Us,
    Figure::DuePerSecond,
    Figure::MachineCpuUs,
    Figure::SystemCpuUs,
    Figure::ProxyCpuUs,
    Figure::PeakKib,
    Figure::AddedKib,
    Figure::BytesPerConnection,
    Figure::UpstreamOpened,
    Figure::DatabaseConnections,
    Figure::Errors,
    Figure::CutOff,
];

/// One case.
pub(super) fn section(case: &CaseRecord) -> String {
    let mut text = format!("## {}\n\n{}.\n", case.name, case.about);
    medians(case, &mut text);
    ratios(case, &mut text);
    compare::rates(case, &mut text);
    compare::added_median(case, &mut text);
    added(case, &mut text);
    compare::paths(case, &mut text);
    remarks(case, &mut text);
    for plot in super::plot::files(case) {
        let _ = writeln!(text, "\n![{}]({plot})", plot.trim_end_matches(".svg"));
    }
    text
}

fn medians(case: &CaseRecord, text: &mut String) {
    let _ = writeln!(text, "\n| median of rounds | {} |", case.proxies.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(case.proxies.len()));
    for figure in ROWS {
        let cells: Vec<Option<f64>> = case
            .proxies
            .iter()
            .map(|proxy| spread(&case.values(proxy, *figure)).map(|spread| spread.median))
            .collect();
        if cells.iter().any(Option::is_some) {
            let cells: Vec<String> =
                cells.into_iter().map(|cell| cell.map_or("-".to_owned(), number)).collect();
            let _ = writeln!(text, "| {} | {} |", figure.label(), cells.join(" | "));
        }
    }
}

/// Ratios are computed per round, so that a longer disturbance of the machine affects both sides.
fn ratios(case: &CaseRecord, text: &mut String) {
    let others: Vec<&String> = case.proxies.iter().filter(|proxy| *proxy != SLUICE).collect();
    if others.is_empty() || !case.proxies.iter().any(|proxy| proxy == SLUICE) {
        return;
    }
    let names: Vec<&str> = others.iter().map(|name| name.as_str()).collect();
    let _ = writeln!(text, "\n| sluice divided by: median (min-max) | {} |", names.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(others.len()));
    for figure in ROWS.iter().filter(|figure| figure.compares()) {
        let cells: Vec<Option<String>> = others
            .iter()
            .map(|other| {
                // For direct, this figure is the origin's, because there is no proxy to measure.
                let ours = *figure == Figure::PeakKib && *other == DIRECT;
                let ratio = spread(&case.ratios(SLUICE, other, *figure)).filter(|_| !ours)?;
                Some(format!("{:.2} ({:.2}-{:.2})", ratio.median, ratio.min, ratio.max))
            })
            .collect();
        if cells.iter().any(Option::is_some) {
            let cells: Vec<String> = cells.into_iter().map(|cell| cell.unwrap_or("-".to_owned())).collect();
            let _ = writeln!(text, "| {} | {} |", figure.label(), cells.join(" | "));
        }
    }
}

/// What each proxy adds to the kernel's work for a direct request, also relative to what sluice adds.
fn added(case: &CaseRecord, text: &mut String) {
    let more = |proxy: &str| case.differences(proxy, DIRECT, Figure::SystemCpuUs);
    let ours = more(SLUICE);
    let proxies: Vec<&String> =
        case.proxies.iter().filter(|proxy| *proxy != DIRECT && !more(proxy).is_empty()).collect();
    if ours.is_empty() || proxies.len() < 2 {
        return;
    }
    let cells = |value: &dyn Fn(&str) -> Vec<f64>, decimals: usize| -> String {
        let cell = |proxy: &&String| {
            spread(&value(proxy)).map_or("-".to_owned(), |spread| {
                format!("{:.decimals$} ({:.decimals$}-{:.decimals$})", spread.median, spread.min, spread.max)
            })
        };
        proxies.iter().map(cell).collect::<Vec<_>>().join(" | ")
    };
    let names: Vec<&str> = proxies.iter().map(|name| name.as_str()).collect();
    let _ = writeln!(text, "\n| system CPU over direct's: median (min-max) | {} |", names.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(names.len()));
    let us = |proxy: &str| more(proxy).into_values().collect();
    let _ = writeln!(text, "| us/request | {} |", cells(&us, 1));
    let ratio = |proxy: &str| {
        let theirs = more(proxy);
        let of_round =
            |(round, ours): (&usize, &f64)| Some(ours / theirs.get(round).filter(|us| **us > 0.0)?);
        ours.iter().filter_map(of_round).collect()
    };
    let _ = writeln!(text, "| sluice's divided by it | {} |", cells(&ratio, 2));
}

fn remarks(case: &CaseRecord, text: &mut String) {
    let mut marked: BTreeMap<Mark, Vec<String>> = BTreeMap::new();
    for proxy in &case.proxies {
        let rounds = case.of(proxy).count();
        let mut counts: BTreeMap<Mark, usize> = BTreeMap::new();
        for mark in case.of(proxy).flat_map(|sample| &sample.marks) {
            *counts.entry(*mark).or_default() += 1;
        }
        for (mark, count) in counts {
            marked.entry(mark).or_default().push(format!("{proxy} ({count} of {rounds})"));
        }
    }
    let marks = marked.iter().map(|(mark, who)| format!("- {}: {}", mark.words(), who.join(", ")));
    let refused = case.refused.iter();
    let refused = refused
        .map(|(proxy, why)| format!("- {proxy} is not measured: {}", why.lines().next().unwrap_or("")));
    let lines: Vec<String> = marks.chain(refused).collect();
    if !lines.is_empty() {
        let _ = writeln!(text, "\nMarks (rounds that have them):\n\n{}", lines.join("\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Sample, Spent};
    use super::*;

    fn sample(round: usize, proxy: &str, rate: f64) -> Sample {
        Sample {
            round,
            proxy: proxy.to_owned(),
            figures: [(Figure::RequestsPerSecond, rate)].into(),
            latency_us: Vec::new(),
            counts: None,
            marks: [Mark::Stolen].into(),
            spent: Spent::default(),
        }
    }

    #[test]
    fn ratios_are_computed_per_round() {
        let case = CaseRecord {
            name: "1kb".to_owned(),
            about: "about".to_owned(),
            proxies: vec!["sluice".to_owned(), "nginx".to_owned()],
            // The second round is half as fast for both.
            samples: vec![
                sample(0, "sluice", 20_000.0),
                sample(0, "nginx", 10_000.0),
                sample(1, "nginx", 5_000.0),
                sample(1, "sluice", 10_000.0),
            ],
            body_sha256: None,
            refused: [("envoy".to_owned(), "no envoy\nlog".to_owned())].into(),
        };
        let text = section(&case);
        assert!(text.contains("| req/s | 15 000 | 7 500 |\n"), "{text}");
        assert!(text.contains("| req/s | 2.00 (2.00-2.00) |\n"), "{text}");
        assert!(text.contains("of the machine: sluice (2 of 2), nginx (2 of 2)\n"), "{text}");
        assert!(text.contains("- envoy is not measured: no envoy\n"), "{text}");
    }
}
