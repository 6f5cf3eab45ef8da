//! A host that limits the unsent bytes of its sockets (`net.ipv4.tcp_notsent_lowat`), as many do: responses are
//! complete and use direct return, whether the limit was set before sluice started or later.

use std::fs;
use std::sync::Arc;

use super::readers::{Reader, read_on, read_slowly};
use super::writers::{Way, Writer};
use super::{LANDED, SIZES, exchanges, start};
use crate::direct::missed;
use crate::namespace::Namespace;
use crate::proxy_support::{Wire, assert_same, pattern};

/// Values used on such hosts.
const MARKS: [u32; 2] = [16_384, 131_072];
/// More than a send queue can contain.
const LARGEST: usize = 4 << 20;
/// Slow clients of each origin, and how long they are slow, in tenths of a second.
const CLIENTS: usize = 10;
const TICKS: u32 = 5;

/// Sets it in the namespace of this thread.
fn set_mark(bytes: u32) {
    fs::write("/proc/sys/net/ipv4/tcp_notsent_lowat", bytes.to_string()).unwrap();
}

fn play(mark: u32, is_first: bool) {
    if is_first {
        set_mark(mark);
    }
    let content = Arc::new(pattern(LARGEST));
    let writers = [Way::Edge, Way::Level, Way::Blocking]
        .map(|way| Writer::start(way, format!("{way:?}-marked"), Arc::clone(&content)));
    let proxy = start(&writers, true);
    set_mark(mark);
    for writer in &writers {
        let host = writer.way.host();
        let mut fast = Wire::connect(proxy.address());
        for size in SIZES.into_iter().chain(SIZES).chain([LARGEST]) {
            let answer = fast.ask(format!("GET /{size} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_same(&answer.body, &content[..size]);
        }
        let size = |at: usize| if at == 0 { LARGEST } else { SIZES[at % SIZES.len()] };
        let mut slow: Vec<_> =
            (0..CLIENTS).map(|at| Reader::ask(proxy.address(), host, &content[..size(at)])).collect();
        read_slowly(&mut slow, TICKS);
        read_on(&mut slow);
    }
    assert_eq!(exchanges(&proxy) > 0.0, LANDED, "{}", missed(&proxy));
    for reason in ["low_mark", "partial"] {
        let name = format!("sluice_direct_return_missed_total{{reason=\"{reason}\"}}");
        assert_eq!(proxy.metric(&name), 0.0, "each socket has its own limit: {}", missed(&proxy));
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn responses_are_complete_on_hosts_that_limit_unsent_bytes() {
    for mark in MARKS {
        for is_first in [true, false] {
            Namespace::new().inside(|| play(mark, is_first));
        }
    }
}
