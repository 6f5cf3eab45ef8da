//! Formats numbers for readers.

/// A count or a rate: `0`, `0.4`, `12`, `9321`, `120k`, `1.2M`.
pub(super) fn count(x: f64) -> String {
    match x {
        _ if x >= 1e6 => format!("{:.1}M", x / 1e6),
        _ if x >= 1e5 => format!("{:.0}k", x / 1e3),
        _ if x >= 10.0 || x == 0.0 => format!("{x:.0}"),
        _ => format!("{x:.1}"),
    }
}

/// Milliseconds: `0.4 ms`, `12 ms`, `1.2 s`; a dash for none.
pub(super) fn time(ms: Option<f64>) -> String {
    match ms {
        None => "-".to_owned(),
        Some(ms) if ms >= 1000.0 => format!("{:.1} s", ms / 1000.0),
        Some(ms) if ms >= 10.0 => format!("{ms:.0} ms"),
        Some(ms) => format!("{ms:.1} ms"),
    }
}

/// A share of one, in percent; a dash for none.
pub(super) fn share(share: Option<f64>) -> String {
    match share {
        None => "-".to_owned(),
        Some(0.0) => "0 %".to_owned(),
        Some(share) if share < 0.001 => "<0.1 %".to_owned(),
        Some(share) if share < 0.1 => format!("{:.1} %", share * 100.0),
        Some(share) => format!("{:.0} %", share * 100.0),
    }
}

/// Bytes per second.
pub(super) fn bytes(x: f64) -> String {
    match x {
        _ if x >= 1e9 => format!("{:.1} GB", x / 1e9),
        _ if x >= 1e6 => format!("{:.1} MB", x / 1e6),
        _ if x >= 1e3 => format!("{:.0} KB", x / 1e3),
        _ => format!("{x:.0} B"),
    }
}

/// Seconds, in the largest suitable unit.
pub(super) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
