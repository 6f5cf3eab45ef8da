//! Tables that compare proxies: rates, what a proxy adds to the median latency, and the paths of sluice.

use std::fmt::Write as _;

use super::counts::Counts;
use super::number::number;
use super::peers::{BYPASS, SLUICE};
use super::record::{CaseRecord, Figure};
use super::rig::DIRECT;
use super::stats::spread;

/// The peer to which latencies are compared.
pub(super) const NGINX: &str = "nginx";

/// The requests per second of every proxy relative to direct, to nginx, to sluice, and to sluice without direct return.
pub(super) fn rates(case: &CaseRecord, text: &mut String) {
    let proxies = proxies(case);
    let figure = Figure::RequestsPerSecond;
    let mut rows = Vec::new();
    for other in [DIRECT, NGINX, SLUICE, BYPASS] {
        let cells: Vec<String> =
            proxies.iter().map(|proxy| cell(&case.ratios(proxy, other, figure), 2)).collect();
        if cells.iter().any(|cell| cell != "-") {
            rows.push((format!("over {other}'s"), cells));
        }
    }
    table("req/s: median (min-max)", &proxies, &rows, text);
}

/// What every proxy adds to direct's median latency, also relative to what nginx adds.
pub(super) fn added_median(case: &CaseRecord, text: &mut String) {
    let proxies = proxies(case);
    let more = |proxy: &str| case.differences(proxy, DIRECT, Figure::P50Us);
    let added: Vec<String> =
        proxies.iter().map(|proxy| cell(&more(proxy).into_values().collect::<Vec<_>>(), 0)).collect();
    if added.iter().all(|cell| cell == "-") {
        return;
    }
    let mut rows = vec![("us".to_owned(), added)];
    let beside: Vec<String> = proxies.iter().map(|proxy| cell(&added_beside_nginx(case, proxy), 2)).collect();
    if beside.iter().any(|cell| cell != "-") {
        rows.push(("divided by nginx's".to_owned(), beside));
    }
    table("p50 over direct's: median (min-max)", &proxies, &rows, text);
}

/// What a proxy adds to direct's median latency, divided by what nginx adds, per round.
pub(super) fn added_beside_nginx(case: &CaseRecord, proxy: &str) -> Vec<f64> {
    let theirs = case.differences(NGINX, DIRECT, Figure::P50Us);
    let of_round = |(round, us): (usize, f64)| Some(us / theirs.get(&round).filter(|nginx| **nginx > 0.0)?);
    case.differences(proxy, DIRECT, Figure::P50Us).into_iter().filter_map(of_round).collect()
}

/// Which paths sluice's exchanges took, and why responses were not returned directly, over all rounds.
pub(super) fn paths(case: &CaseRecord, text: &mut String) {
    let counted: Vec<(&str, Counts)> =
        proxies(case).into_iter().filter_map(|proxy| Some((proxy, total(case, proxy)?))).collect();
    let names: Vec<&str> = counted.iter().map(|(name, _)| *name).collect();
    let row = |label: String, n: &dyn Fn(&Counts) -> u64| {
        let cells = counted.iter().map(|(_, counts)| share(n(counts), counts.exchanges())).collect();
        (label, cells)
    };
    let named = |of: fn(&Counts) -> Vec<&String>| {
        let mut names: Vec<&String> = counted.iter().flat_map(|(_, counts)| of(counts)).collect();
        names.sort();
        names.dedup();
        names
    };
    let of = |counts: Option<&u64>| counts.copied().unwrap_or(0);
    let mut rows = Vec::new();
    for path in named(|counts| counts.paths.keys().collect()) {
        rows.push(row(format!("path={path}"), &|counts| of(counts.paths.get(path))));
    }
    rows.push(row("returned directly".to_owned(), &|counts| counts.direct));
    for reason in named(|counts| counts.missed.keys().collect()) {
        rows.push(row(format!("missed: {reason}"), &|counts| of(counts.missed.get(reason))));
    }
    if !names.is_empty() {
        table("share of exchanges (number), all rounds", &names, &rows, text);
    }
}

/// All columns except direct's, sluice first.
fn proxies(case: &CaseRecord) -> Vec<&str> {
    let mut names: Vec<&str> =
        case.proxies.iter().map(String::as_str).filter(|name| *name != DIRECT).collect();
    names.sort_by_key(|name| *name != SLUICE);
    names
}

/// What a proxy counted in all its rounds; `None` if it does not count.
pub(super) fn total(case: &CaseRecord, proxy: &str) -> Option<Counts> {
    let mut all: Option<Counts> = None;
    for counts in case.of(proxy).filter_map(|sample| sample.counts.as_ref()) {
        all.get_or_insert_default().add(counts);
    }
    all
}

/// A part in percent, and as a number.
pub(super) fn share(part: u64, whole: u64) -> String {
    match (part, whole) {
        (0, _) | (_, 0) => "-".to_owned(),
        _ => format!("{:.2} % ({})", part as f64 * 100.0 / whole as f64, number(part as f64)),
    }
}

/// Median, minimum and maximum; a dash if there are no values.
pub(super) fn cell(values: &[f64], decimals: usize) -> String {
    spread(values).map_or("-".to_owned(), |spread| {
        format!("{:.decimals$} ({:.decimals$}-{:.decimals$})", spread.median, spread.min, spread.max)
    })
}

/// A table with a title above its labels; nothing if there are no rows.
pub(super) fn table(title: &str, names: &[&str], rows: &[(String, Vec<String>)], text: &mut String) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n| {title} | {} |", names.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(names.len()));
    for (label, cells) in rows {
        let _ = writeln!(text, "| {label} | {} |", cells.join(" | "));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::record::{Sample, Spent};
    use super::*;

    fn sample(round: usize, proxy: &str, (rate, p50): (f64, f64), counts: Option<Counts>) -> Sample {
        Sample {
            round,
            proxy: proxy.to_owned(),
            figures: [(Figure::RequestsPerSecond, rate), (Figure::P50Us, p50)].into(),
            latency_us: Vec::new(),
            counts,
            marks: [].into(),
            spent: Spent::default(),
        }
    }

    pub(in super::super) fn case() -> CaseRecord {
        let counts = |direct: u64, copied: u64| Counts {
            direct,
            paths: [("direct".to_owned(), direct), ("copy".to_owned(), copied)].into(),
            missed: [("full".to_owned(), copied)].into(),
        };
        CaseRecord {
            name: "1kb-4".to_owned(),
            about: "about".to_owned(),
            proxies: [DIRECT, SLUICE, BYPASS, NGINX].map(str::to_owned).into(),
            // The second round is slower for all.
            samples: vec![
                sample(0, DIRECT, (100.0, 40.0), None),
                sample(0, SLUICE, (80.0, 70.0), Some(counts(90, 10))),
                sample(0, BYPASS, (64.0, 80.0), Some(Counts::default())),
                sample(0, NGINX, (40.0, 100.0), None),
                sample(1, NGINX, (20.0, 200.0), None),
                sample(1, SLUICE, (40.0, 140.0), Some(counts(100, 0))),
                sample(1, DIRECT, (50.0, 80.0), None),
            ],
            body_sha256: None,
            refused: [].into(),
        }
    }

    #[test]
    fn rates_compare_every_proxy() {
        let mut text = String::new();
        rates(&case(), &mut text);
        assert!(text.contains("| req/s: median (min-max) | sluice | sluice-bypass | nginx |\n"), "{text}");
        assert!(text.contains("| over direct's | 0.80 (0.80-0.80) | 0.64 (0.64-0.64) | 0.40"), "{text}");
        assert!(text.contains("| over sluice-bypass's | 1.25 (1.25-1.25) | 1.00"), "{text}");
    }

    #[test]
    fn added_latency_is_computed_per_round() {
        let mut text = String::new();
        added_median(&case(), &mut text);
        assert!(text.contains("| us | 45 (30-60) | 40 (40-40) | 90 (60-120) |\n"), "{text}");
        assert!(text.contains("| divided by nginx's | 0.50 (0.50-0.50) | 0.67 (0.67-0.67) | 1.00"), "{text}");
    }

    #[test]
    fn shares_include_all_rounds() {
        let mut text = String::new();
        paths(&case(), &mut text);
        assert!(text.contains("| path=direct | 95.00 % (190) | - |\n"), "{text}");
        assert!(text.contains("| missed: full | 5.00 % (10) | - |\n"), "{text}");
    }
}
