//! On which cores workers run (`worker_placement`).

use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::support::{Message, Origin, Proxy, Setup, Wire, allowed_cores, ok, poll};

/// A proxy with a worker for each core; `None` if this host has one core, or too many to keep busy.
fn start(placement: &str) -> Option<(Proxy, Load)> {
    start_with(placement, Setup::to_origin(&Origin::saying("hi")))
}

fn start_with(placement: &str, setup: Setup) -> Option<(Proxy, Load)> {
    let cores = std::thread::available_parallelism().unwrap().get();
    if !(2..=8).contains(&cores) {
        eprintln!("skipped: needs 2 to 8 cores, not {cores}");
        return None;
    }
    let proxy = setup.with("workers", cores).with("worker_placement", placement).start()?;
    let wires = (0..16 * cores).map(|_| proxy.connect()).collect();
    let load = Load { workers: cores, wires, answer: "hi" };
    Some((proxy, load))
}

/// Connections that keep all workers busy.
struct Load {
    workers: usize,
    wires: Vec<Wire>,
    answer: &'static str,
}

impl Load {
    fn run(&mut self) {
        const REQUESTS: usize = 20;
        let requests = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(REQUESTS);
        self.wires.iter_mut().for_each(|wire| wire.send(&requests));
        for wire in &mut self.wires {
            for _ in 0..REQUESTS {
                assert_eq!(wire.response().text(), self.answer);
            }
        }
    }

    /// Runs until one worker serves all connections. Returns false, and says so, if a worker waited too long for its
    /// core: other tests may have taken the cores, and this one cannot free them.
    fn run_until_gathered(&mut self, proxy: &Proxy) -> bool {
        let metric = |name: &str| proxy.metric(&format!("sluice_workers_{name}"));
        poll("one worker to serve", || {
            self.run();
            if metric("batch") < self.workers as f64 {
                eprintln!("skipped: a worker waited too long for its core");
                return Some(false);
            }
            let rest = metric("resting") == self.workers as f64 - 1.0;
            (rest && metric("connections_max") == self.wires.len() as f64).then_some(true)
        })
    }

    /// Runs until each worker stays on a core of its own. Returns false, and says so, if a worker waited too long for
    /// its core.
    fn run_until_placed(&mut self, proxy: &Proxy) -> bool {
        poll("the workers to stay", || {
            self.run();
            let metric = |name: &str| proxy.metric(&format!("sluice_workers_{name}"));
            let workers = self.workers as f64;
            if metric("batch") < workers {
                eprintln!("skipped: a worker waited too long for its core");
                return Some(false);
            }
            (metric("placed") == workers && proxy.worker_cores() == one_each()).then_some(true)
        })
    }
}

/// One core for each worker.
fn one_each() -> Vec<String> {
    let cores = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let numbers = (0..CpuSet::count()).filter(|core| cores.is_set(*core).unwrap());
    let mut all: Vec<_> = numbers.map(|core| core.to_string()).collect();
    all.sort();
    all
}

/// The cores of this process.
fn own() -> String {
    allowed_cores(&std::fs::read_to_string("/proc/self/status").unwrap())
}

#[test]
fn busy_worker_stays_on_a_core_of_its_own() {
    let Some((proxy, mut load)) = start("spread") else { return };
    let roams = vec![own(); load.workers];
    // A thread gives itself its name, which may be later.
    poll("the workers", || (proxy.worker_cores() == roams).then_some(()));
    load.run_until_placed(&proxy);
    drop(load);
    poll("the workers to roam", || (proxy.worker_cores() == roams).then_some(()));
    poll("the count", || (proxy.metric("sluice_workers_placed") == 0.0).then_some(()));
}

/// An origin that works for 20 ms on each request, without needing a core, behind a proxy that lets requests wait. More
/// requests would take a slow host too much of a core.
fn queueing(answer: impl Fn(&Message) -> String + Send + Sync + 'static) -> Setup {
    let origin = Origin::answering(move |request| {
        std::thread::sleep(Duration::from_millis(20));
        ok(&answer(request))
    });
    Setup::to_origin(&origin).with("clusters.default.max_in_flight", 8)
}

#[test]
fn one_worker_serves_all_connections_while_requests_are_queued() {
    let Some((proxy, mut load)) = start_with("spread", queueing(|_| "hi".to_owned())) else { return };
    let all = load.wires.len() as f64;
    let connections = |which: &str| proxy.metric(&format!("sluice_workers_connections_{which}"));
    if !load.run_until_gathered(&proxy) {
        return;
    }
    assert_eq!(proxy.metric("sluice_downstream_connections_open"), all);
    assert_eq!(proxy.metric("sluice_downstream_connections_total"), all, "none is counted twice");
    assert!(proxy.metric("sluice_downstream_connections_moved_total") >= all / 4.0);
    load.wires.push(proxy.connect());
    load.run();
    poll("the others to serve again", || (proxy.metric("sluice_workers_resting") == 0.0).then_some(()));
    poll("the connections to be spread", || {
        // One after the other, so that none is queued.
        for wire in &mut load.wires {
            assert_eq!(wire.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "hi");
        }
        (connections("max") - connections("min") <= 4.0).then_some(())
    });
    drop(load);
    poll("them to be gone", || (proxy.metric("sluice_downstream_connections_open") == 0.0).then_some(()));
    assert_eq!(connections("max"), 0.0);
}

#[test]
fn connection_that_has_moved_has_the_same_client() {
    let setup = queueing(|request| request.get("x-forwarded-for").unwrap_or_default().to_owned())
        .with("listeners.0.proxy_protocol", "v1");
    let Some((proxy, mut load)) = start_with("spread", setup) else { return };
    load.answer = "192.0.2.1";
    load.wires.iter_mut().for_each(|wire| wire.send("PROXY TCP4 192.0.2.1 192.0.2.2 7 80\r\n"));
    if load.run_until_gathered(&proxy) {
        assert!(proxy.metric("sluice_downstream_connections_moved_total") > 0.0);
        load.run();
    }
}

#[test]
fn cores_that_were_given_from_outside_are_kept() {
    let Some((proxy, mut load)) = start("spread") else { return };
    if !load.run_until_placed(&proxy) {
        return;
    }
    let core = one_each().remove(0);
    let mut cores = CpuSet::new();
    cores.set(core.parse().unwrap()).unwrap();
    for thread in proxy.worker_threads() {
        sched_setaffinity(Pid::from_raw(thread), &cores).unwrap();
    }
    drop(load);
    poll("the count", || (proxy.metric("sluice_workers_placed") == 0.0).then_some(()));
    let all = proxy.worker_cores();
    assert!(all.iter().filter(|cores| **cores == core).count() >= all.len() - 1, "{all:?}");
}

#[test]
fn kernel_chooses_if_it_is_asked_to() {
    let Some((proxy, mut load)) = start("kernel") else { return };
    let roams = vec![own(); load.workers];
    for _ in 0..10 {
        load.run();
        assert_eq!(proxy.worker_cores(), roams);
    }
    assert_eq!(proxy.metric("sluice_workers_placed"), 0.0);
}
