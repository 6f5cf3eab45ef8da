//! The plain table of `--once`.

use std::fmt::Write;

use sluice_control::status::Document;

use super::format::{count, share, span, time};
use super::rows::{Column, rows};

/// Two summary lines, and one line per endpoint.
pub(super) fn table(document: &Document) -> String {
    let mut text = format!("{}\n{}\n\n", headline(document), numbers(document));
    let cells: Vec<[String; Column::ALL.len()]> =
        rows(document, None).iter().map(|row| Column::ALL.map(|column| row.cell(column))).collect();
    let widths: Vec<usize> = Column::ALL
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let cells = cells.iter().map(|row| row[index].chars().count());
            cells.max().unwrap_or(0).max(column.title().len())
        })
        .collect();
    line(&mut text, Column::ALL.map(|column| column.title().to_owned()), &widths);
    for row in cells {
        line(&mut text, row, &widths);
    }
    text
}

fn line(text: &mut String, cells: [String; Column::ALL.len()], widths: &[usize]) {
    let begun = text.len();
    for ((cell, column), width) in cells.iter().zip(Column::ALL).zip(widths) {
        // Writing to text does not fail.
        let _ = match column.is_number() {
            true => write!(text, "{cell:>width$}  "),
            false => write!(text, "{cell:<width$}  "),
        };
    }
    text.truncate(begun + text[begun..].trim_end().len());
    text.push('\n');
}

/// Identity and state.
pub(super) fn headline(document: &Document) -> String {
    let (version, workers) =
        document.fixed.as_ref().map_or(("", 0), |fixed| (fixed.version.as_str(), fixed.workers));
    format!("sluice {version}: {}, up {}, {workers} workers", document.state, span(document.uptime_s))
}

/// Totals.
pub(super) fn numbers(document: &Document) -> String {
    let totals = &document.totals;
    let latency = totals.rates.latency_10s;
    format!(
        "{} req/s, errors {}, p50 {}, p99 {}, {} in flight, {} queued, {} clients",
        count(totals.rates.requests),
        share(totals.rates.error_share_10s),
        time(latency.map(|latency| latency.p50_ms)),
        time(latency.map(|latency| latency.p99_ms)),
        totals.in_flight,
        totals.queued,
        totals.downstream_open,
    )
}
