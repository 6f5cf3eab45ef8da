//! On which cores workers run (`worker_placement`).

use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::support::{Origin, Proxy, Setup, Wire, allowed_cores, ok, poll};

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
    let load = Load { workers: cores, wires: (0..16 * cores).map(|_| proxy.connect()).collect() };
    Some((proxy, load))
}

/// Connections that keep all workers busy.
struct Load {
    workers: usize,
    wires: Vec<Wire>,
}

impl Load {
    fn run(&mut self) {
        const REQUESTS: usize = 20;
        let requests = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(REQUESTS);
        self.wires.iter_mut().for_each(|wire| wire.send(&requests));
        for wire in &mut self.wires {
            for _ in 0..REQUESTS {
                assert_eq!(wire.response().text(), "hi");
            }
        }
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

/// How long the cores of this process were idle so far, in ticks of /proc/stat.
fn idle_ticks() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let own: Vec<_> = one_each().iter().map(|core| format!("cpu{core}")).collect();
    let lines = text.lines().filter(|line| own.iter().any(|core| line.split(' ').next() == Some(core)));
    lines.map(|line| line.split_whitespace().nth(4).unwrap().parse::<u64>().unwrap()).sum()
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

#[test]
fn workers_share_a_core_while_requests_are_queued_and_cores_are_idle() {
    // It works for 4 ms on each request, without needing a core.
    let origin = Origin::answering(|_| {
        std::thread::sleep(Duration::from_millis(4));
        ok("hi")
    });
    let setup = Setup::to_origin(&origin).with("clusters.default.max_in_flight", 8);
    let Some((proxy, mut load)) = start_with("spread", setup) else { return };
    let roams = vec![own(); load.workers];
    let (begun, before) = (Instant::now(), idle_ticks());
    let gathered = poll("the workers to share a core", || {
        load.run();
        let cores = proxy.worker_cores();
        let is_one = one_each().contains(&cores[0]) && cores.iter().all(|core| *core == cores[0]);
        if is_one && proxy.metric("sluice_workers_gathered") == load.workers as f64 {
            return Some(true);
        }
        // Other tests may have taken the cores, or did so for long enough, and this one cannot free them.
        if proxy.metric("sluice_workers_batch") < load.workers as f64 {
            return Some(false);
        }
        (begun.elapsed() > Duration::from_secs(20)).then_some(false)
    });
    if !gathered {
        if proxy.metric("sluice_workers_batch") < load.workers as f64 {
            return eprintln!("skipped: a worker waited too long for its core");
        }
        // A tick is 10 ms. A fifth of idle time is needed in one second; there was more on average.
        let idle = (idle_ticks() - before) as f64 / 100.0 / begun.elapsed().as_secs_f64();
        assert!(idle < 0.4 * one_each().len() as f64, "the cores had idle time: {idle} of them");
        return eprintln!("skipped: no idle time on these cores in 20 s");
    }
    drop(load);
    poll("the workers to roam", || (proxy.worker_cores() == roams).then_some(()));
    poll("the count", || (proxy.metric("sluice_workers_gathered") == 0.0).then_some(()));
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
