//! The table: one row per endpoint, its columns, and their sort order.

use std::cmp::Ordering;

use sluice_control::status::document::{Document, Endpoint, Paths};

use super::format::{bytes, count, share, time};

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Cluster,
    Endpoint,
    Health,
    InFlight,
    Requests,
    Errors,
    P50,
    P99,
    Sent,
    Paths,
}

impl Column {
    /// From left to right.
    pub(super) const ALL: [Self; 10] = [
        Self::Cluster,
        Self::Endpoint,
        Self::Health,
        Self::InFlight,
        Self::Requests,
        Self::Errors,
        Self::P50,
        Self::P99,
        Self::Sent,
        Self::Paths,
    ];

    /// The most useful columns that fit into a width, separated by spaces, from left to right.
    pub(super) fn fitting(width: u16) -> Vec<Self> {
        let by_worth = [
            Self::Endpoint,
            Self::Health,
            Self::Requests,
            Self::P99,
            Self::InFlight,
            Self::Errors,
            Self::Cluster,
            Self::P50,
            Self::Sent,
            Self::Paths,
        ];
        let mut left = width.saturating_sub(Self::Endpoint.width());
        let mut fitting = vec![Self::Endpoint];
        for column in by_worth.into_iter().skip(1) {
            let Some(rest) = left.checked_sub(column.width() + 1) else { break };
            left = rest;
            fitting.push(column);
        }
        Self::ALL.into_iter().filter(|column| fitting.contains(column)).collect()
    }

    /// Its heading.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Cluster => "CLUSTER",
            Self::Endpoint => "ENDPOINT",
            Self::Health => "HEALTH",
            Self::InFlight => "IN FLIGHT",
            Self::Requests => "REQ/S",
            Self::Errors => "ERRORS",
            Self::P50 => "P50",
            Self::P99 => "P99",
            Self::Sent => "SENT/S",
            Self::Paths => "PATHS",
        }
    }

    /// The key that sorts by it.
    pub(super) fn key(self) -> char {
        match self {
            Self::Cluster => 'c',
            Self::Endpoint => 'n',
            Self::Health => 'h',
            Self::InFlight => 'f',
            Self::Requests => 'r',
            Self::Errors => 'e',
            Self::P50 => 'm',
            Self::P99 => 'p',
            Self::Sent => 'b',
            Self::Paths => 't',
        }
    }

    /// Whether it is a number: right-aligned, and sorted with the largest first.
    pub(super) fn is_number(self) -> bool {
        !matches!(self, Self::Cluster | Self::Endpoint | Self::Health | Self::Paths)
    }

    /// Width in characters.
    pub(super) fn width(self) -> u16 {
        match self {
            Self::Cluster => 12,
            Self::Endpoint => 22,
            Self::Health => 9,
            Self::InFlight => 10,
            Self::Requests | Self::Errors => 7,
            Self::P50 | Self::P99 | Self::Sent => 8,
            Self::Paths => 16,
        }
    }
}

/// One endpoint of one cluster.
#[derive(Clone, Copy)]
pub(super) struct Row<'d> {
    pub(super) cluster: &'d str,
    pub(super) endpoint: &'d Endpoint,
}

impl Row<'_> {
    /// The content of a column.
    pub(super) fn cell(&self, column: Column) -> String {
        let Self { cluster, endpoint } = self;
        let (rates, latency) = (&endpoint.rates, endpoint.rates.latency_10s);
        match column {
            Column::Cluster => (*cluster).to_owned(),
            Column::Endpoint => endpoint.label.clone(),
            Column::Health => self.state().to_owned(),
            Column::InFlight => match endpoint.limit {
                Some(limit) => format!("{}/{limit}", endpoint.in_flight),
                None => endpoint.in_flight.to_string(),
            },
            Column::Requests => count(rates.requests),
            Column::Errors => share(rates.error_share_10s),
            Column::P50 => time(latency.map(|latency| latency.p50_ms)),
            Column::P99 => time(latency.map(|latency| latency.p99_ms)),
            Column::Sent => bytes(rates.bytes_out),
            Column::Paths => paths(rates.paths),
        }
    }

    /// Its health, or that it is disabled, which takes precedence.
    pub(super) fn state(&self) -> &str {
        if self.endpoint.disabled { "disabled" } else { &self.endpoint.health }
    }

    fn compare(&self, other: &Self, column: Column) -> Ordering {
        let number = |row: &Self| {
            let rates = &row.endpoint.rates;
            match column {
                Column::InFlight => row.endpoint.in_flight as f64,
                Column::Requests => rates.requests,
                Column::Errors => rates.error_share_10s.unwrap_or(-1.0),
                Column::P50 => rates.latency_10s.map_or(-1.0, |latency| latency.p50_ms),
                Column::P99 => rates.latency_10s.map_or(-1.0, |latency| latency.p99_ms),
                _ => rates.bytes_out,
            }
        };
        if column.is_number() {
            return number(self).total_cmp(&number(other));
        }
        self.cell(column).cmp(&other.cell(column))
    }
}

/// All rows, in the requested order.
pub(super) fn rows(document: &Document, sorted: Option<(Column, bool)>) -> Vec<Row<'_>> {
    let clusters = document.clusters.iter();
    let mut rows: Vec<Row<'_>> = clusters
        .flat_map(|cluster| cluster.endpoints.iter().map(|endpoint| Row { cluster: &cluster.name, endpoint }))
        .collect();
    if let Some((column, down)) = sorted {
        rows.sort_by(|a, b| if down { b.compare(a, column) } else { a.compare(b, column) });
    }
    rows
}

/// The paths in use, the most used first.
pub(super) fn paths(paths: Paths) -> String {
    let Paths { copy, bypass, direct, splice } = paths;
    let mut taken = [("copy", copy), ("bypass", bypass), ("direct", direct), ("splice", splice)];
    taken.sort_by(|a, b| b.1.total_cmp(&a.1));
    let taken: Vec<String> =
        taken.iter().filter(|(_, n)| *n > 0.0).map(|(name, n)| format!("{name} {}", count(*n))).collect();
    if taken.is_empty() { "-".to_owned() } else { taken.join(", ") }
}
