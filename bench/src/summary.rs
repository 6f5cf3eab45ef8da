//! All cases of a run in one table, one line each: sluice relative to direct, to nginx, and to itself without direct
//! return.

use super::compare::{NGINX, added_beside_nginx, cell, share, table, total};
use super::peers::{BYPASS, SLUICE};
use super::record::{CaseRecord, Figure};
use super::rig::DIRECT;

/// The figures by which sluice is divided.
const RATIOS: &[(&str, Figure, &str)] = &[
    ("req/s over direct's", Figure::RequestsPerSecond, DIRECT),
    ("over nginx's", Figure::RequestsPerSecond, NGINX),
    ("over sluice-bypass's", Figure::RequestsPerSecond, BYPASS),
    ("p99 over sluice-bypass's", Figure::P99Us, BYPASS),
    ("CPU of the machine over sluice-bypass's", Figure::MachineCpuUs, BYPASS),
    ("CPU of the proxy over sluice-bypass's", Figure::ProxyCpuUs, BYPASS),
];

/// The table; empty unless a case has sluice with and without direct return.
pub(super) fn summary(cases: &[CaseRecord]) -> String {
    let both =
        |case: &&CaseRecord| [SLUICE, BYPASS].iter().all(|name| case.proxies.iter().any(|one| one == name));
    let rows: Vec<_> = cases.iter().filter(both).map(|case| (case.name.clone(), line(case))).collect();
    let mut columns: Vec<&str> = RATIOS.iter().map(|(name, ..)| *name).collect();
    columns.extend(["added p50 over nginx's", "path=direct"]);
    let mut text = String::new();
    table("sluice: median (min-max) of ratios", &columns, &rows, &mut text);
    text
}

fn line(case: &CaseRecord) -> Vec<String> {
    let ratio = |(_, figure, other): &(&str, Figure, &str)| cell(&case.ratios(SLUICE, other, *figure), 2);
    let mut cells: Vec<String> = RATIOS.iter().map(ratio).collect();
    cells.push(cell(&added_beside_nginx(case, SLUICE), 2));
    let counts = total(case, SLUICE).unwrap_or_default();
    let direct = counts.paths.get("direct").copied().unwrap_or(0);
    cells.push(share(direct, counts.exchanges()));
    cells
}

#[cfg(test)]
mod tests {
    use super::super::compare::tests::case;
    use super::*;

    #[test]
    fn each_case_is_one_line() {
        let text = summary(&[case(), case()]);
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| 1kb-4 | 0.80 (")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("| 0.50 (0.50-0.50) | 95.00 % (190) |"), "{text}");
    }

    #[test]
    fn cases_without_both_variants_are_omitted() {
        let mut case = case();
        case.proxies.retain(|name| name != BYPASS);
        assert_eq!(summary(&[case]), "");
    }
}
