//! Clients that hardly read: no origin spins or hangs, a fast client among them is served, and memory is limited.
//!
//! An origin whose bytes go directly to a client's queue polls as writable regardless of the room in it; some servers
//! react by spinning, others by waiting forever. So bytes without room must not be accepted. Compared with the same
//! clients and origins without direct return.

mod low_mark;
mod pressure;
mod readers;
mod writers;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;

use serde_json::json;

use super::{LANDED, exchanges, holding, withheld};
use crate::memory::{QUIET, in_buffers, in_slab};
use crate::proxy_support::{Proxy, Setup, pattern};
use readers::{Reader, ask_meanwhile, read_on, read_slowly};
use writers::{Way, Writer};

/// Clients of each origin.
const CLIENTS: usize = 200;
/// How long they are slow, in tenths of a second.
const TICKS: u32 = 25;
/// The requested sizes, in turn; the last one is more than the kernel would buffer for one client.
const SIZES: [usize; 4] = [64 << 10, 100 << 10, 1 << 20, 200 << 10];
const HUGE: usize = 8 << 20;
/// One client in this many requests that size.
const HUGE_EVERY: usize = 64;
/// Allowed additional CPU time, in ticks of 10 ms: a spinning origin takes twice as much.
const CPU_SLACK: u64 = 100;
/// The same for the number of times an origin was told to wait: a spinning one is told a hundred thousand times a
/// second.
const WAITS_SLACK: u64 = 20_000;
/// Allowance for other tests that run meanwhile.
const NOISE: u64 = 64 << 20;

/// The cost of an origin's clients.
#[derive(Debug)]
struct Cost {
    /// The origin; for display.
    _host: &'static str,
    /// Ticks of 10 ms, until everyone has read everything.
    cpu: u64,
    waits: u64,
    /// Requests of a fast client that were served meanwhile.
    meanwhile: u64,
}

#[derive(Debug)]
struct Costs {
    each: Vec<Cost>,
    /// Bytes in TCP's buffers while they were slow.
    buffers: u64,
    /// Of the kernel's objects.
    slab: u64,
}

/// CPU ticks used by threads of this name.
fn cpu(name: &str) -> u64 {
    let stats = fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        let text = fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (before, after) = text.rsplit_once(')')?;
        let of_it = before.split_once('(')?.1 == name;
        of_it.then(|| {
            after.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>()
        })
    });
    stats.sum()
}

/// One sluice; each origin has its own Host.
fn start(writers: &[Writer], direct: bool) -> Proxy {
    let route = |writer: &Writer| json!({"hosts": [writer.way.host()], "cluster": writer.way.host()});
    let cluster =
        |writer: &Writer| (writer.way.host().to_owned(), json!({"endpoints": [writer.address.to_string()]}));
    let setup = Setup::to(&[])
        .with("workers", 2)
        .with("routes", writers.iter().map(route).collect::<Vec<_>>())
        .with("clusters", writers.iter().map(cluster).collect::<serde_json::Map<_, _>>());
    let setup = if direct { holding(setup, 0) } else { withheld(setup.with("kernel.bypass", "required")) };
    setup.start().unwrap()
}

/// Slow clients on all origins at once, behind one sluice.
fn measure(direct: bool, content: &Arc<Vec<u8>>) -> Costs {
    let name = |way: Way| format!("{way:?}-{}", if direct { "direct" } else { "copied" });
    let writers =
        [Way::Edge, Way::Level, Way::Blocking].map(|way| Writer::start(way, name(way), Arc::clone(content)));
    let proxy = start(&writers, direct);
    let (buffers, slab) = (in_buffers(), in_slab());
    let ready = std::sync::Barrier::new(writers.len() + 1);
    let costs = thread::scope(|scope| {
        let (ready, proxy) = (&ready, &proxy);
        let players: Vec<_> = writers
            .iter()
            .map(|writer| {
                scope.spawn(move || {
                    play(writer, proxy, content, || {
                        ready.wait();
                        ready.wait();
                    })
                })
            })
            .collect();
        ready.wait();
        let grown = (in_buffers().saturating_sub(buffers), in_slab().saturating_sub(slab));
        ready.wait();
        let each = players.into_iter().map(|player| player.join().unwrap()).collect();
        Costs { each, buffers: grown.0, slab: grown.1 }
    });
    assert_eq!(exchanges(&proxy) > 0.0, LANDED && direct);
    // Responses too large for a client's queue were left to sluice.
    let without_room = proxy.metric("sluice_direct_return_missed_total{reason=\"room\"}");
    assert_eq!(without_room > 0.0, LANDED && direct);
    costs
}

/// The clients of one origin; `slow` is called when they have been slow for long enough.
fn play(writer: &Writer, proxy: &Proxy, content: &[u8], slow: impl FnOnce()) -> Cost {
    let host = writer.way.host();
    let size = |at: usize| if at % HUGE_EVERY == 7 { HUGE } else { SIZES[at % SIZES.len()] };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut readers: Vec<_> =
            (0..CLIENTS).map(|at| Reader::ask(proxy.address(), host, &content[..size(at)])).collect();
        let fast = scope.spawn(|| ask_meanwhile(proxy.address(), host, || done.load(Ordering::Relaxed)));
        read_slowly(&mut readers, TICKS);
        slow();
        done.store(true, Ordering::Relaxed);
        let meanwhile = fast.join().unwrap();
        read_on(&mut readers);
        Cost { _host: host, cpu: cpu(&writer.name), waits: writer.waits.load(Ordering::Relaxed), meanwhile }
    })
}

#[test]
#[ignore = "needs root and BPF"]
fn no_origin_spins_or_hangs_on_slow_clients() {
    let _noise = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    let content = Arc::new(pattern(HUGE));
    let copied = measure(false, &content);
    let direct = measure(true, &content);
    eprintln!("copied {copied:#?}\ndirect {direct:#?}");
    for (direct, copied) in direct.each.iter().zip(&copied.each) {
        assert!(direct.cpu <= copied.cpu + CPU_SLACK, "{direct:?}, but copied {copied:?}");
        assert!(direct.waits <= copied.waits + WAITS_SLACK, "{direct:?}, but copied {copied:?}");
        assert!(direct.meanwhile > 0, "{direct:?}, but copied {copied:?}");
    }
    let bound = |copied: u64| copied + copied / 4 + NOISE;
    assert!(direct.buffers <= bound(copied.buffers), "{direct:?}, but copied {copied:?}");
    assert!(direct.slab <= bound(copied.slab), "{direct:?}, but copied {copied:?}");
}
