//! Direct return: responses that leave directly through the client's socket, on real sockets.
//!
//! It must not change what a client receives. `scripts` compares responses of every shape with those of a sluice that
//! copies, and specifies which of them must use direct return; `adversary` subjects it to random worst-case clients and
//! applications; `slow` has clients that hardly read.

mod adversary;
mod calm;
mod closing;
mod scripts;
mod slow;
mod unread;

use crate::proxy_support::{Proxy, Setup};

/// Whether the binary supports it. Without it, everything here tests joined connections, which must pass too.
pub(crate) const LANDED: bool = true;

/// Responses that used direct return to their end.
pub(crate) const EXCHANGES: &str = "sluice_direct_return_exchanges_total";

/// The same setup with direct return, for responses of at least this size.
pub(crate) fn returning(setup: Setup, bytes_min: u64) -> Setup {
    let setup = setup.with("kernel.bypass", "required");
    if !LANDED {
        return setup;
    }
    let setup =
        setup.with("kernel.direct_return", "required").with("kernel.direct_return_bytes_min", bytes_min);
    setup.with("kernel.direct_return_calm_max", 0)
}

/// The same, but every head that is sent separately from its body is held for it.
pub(crate) fn holding(setup: Setup, bytes_min: u64) -> Setup {
    returning(setup, bytes_min).with("kernel.direct_return_hold_after", 0)
}

/// The same setup without it, whatever its default.
pub(crate) fn withheld(setup: Setup) -> Setup {
    if LANDED { setup.with("kernel.direct_return", "off") } else { setup }
}

/// How many responses used direct return to their end so far.
pub(crate) fn exchanges(proxy: &Proxy) -> f64 {
    proxy.metric(EXCHANGES)
}

/// Why others did not, with their numbers.
pub(crate) fn missed(proxy: &Proxy) -> String {
    let page = proxy.admin("/metrics");
    let lines = page
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix("sluice_direct_return_missed_total{reason=\""));
    lines.filter(|line| !line.ends_with(" 0")).collect::<Vec<_>>().join(", ").replace("\"}", "")
}
