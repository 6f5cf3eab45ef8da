//! Direct return: answers that go from the application's socket straight out of the client's, on real sockets.
//!
//! What a client gets must not depend on it. `scripts` holds answers of every shape against those of a sluice that
//! copies, and says which of them must have gone the way and which must not; `adversary` does to it whatever
//! clients and applications do at their worst, at random; `slow` has clients that hardly read.

mod adversary;
mod closing;
mod scripts;
mod slow;
mod unread;

use crate::proxy_support::{Proxy, Setup};

/// Whether the binary has it. Without it everything here is told of joined connections, which must pass it, too.
pub(crate) const LANDED: bool = true;

/// Answers that went the way to their end.
pub(crate) const EXCHANGES: &str = "sluice_direct_return_exchanges_total";

/// The same setup with it, for answers of at least so many bytes.
pub(crate) fn returning(setup: Setup, bytes_min: u64) -> Setup {
    let setup = setup.with("kernel.bypass", "required");
    if !LANDED {
        return setup;
    }
    let setup =
        setup.with("kernel.direct_return", "required").with("kernel.direct_return_bytes_min", bytes_min);
    setup.with("kernel.direct_return_calm_max", 0)
}

/// The same, but every head that comes apart from its body waits for it.
pub(crate) fn holding(setup: Setup, bytes_min: u64) -> Setup {
    returning(setup, bytes_min).with("kernel.direct_return_hold_after", 0)
}

/// The same setup without it, whatever its default.
pub(crate) fn withheld(setup: Setup) -> Setup {
    if LANDED { setup.with("kernel.direct_return", "off") } else { setup }
}

/// How many answers went the way to their end so far.
pub(crate) fn exchanges(proxy: &Proxy) -> f64 {
    proxy.metric(EXCHANGES)
}

/// Why others did not, with how many.
pub(crate) fn missed(proxy: &Proxy) -> String {
    let page = proxy.admin("/metrics");
    let lines = page
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix("sluice_direct_return_missed_total{reason=\""));
    lines.filter(|line| !line.ends_with(" 0")).collect::<Vec<_>>().join(", ").replace("\"}", "")
}
