//! The kernel gives each connection to the worker with the fewest, also after reloads and upgrades.
//!
//! Where the kernel chooses by anything else, the spread of the connections shows it.

use std::net::{SocketAddr, TcpListener};

use serde_json::{Value, json};

use crate::proxy_support::{Origin, Proxy, Setup, Stray, Wire, poll, upgrade};

const WORKERS: usize = 4;
/// So many that a hash practically never spreads them evenly.
const CLIENTS: u64 = 100 * WORKERS as u64;
/// How many connections more than another a worker may have: those on their way may be forgotten, and an old process may
/// accept some.
const FEW: u64 = 4;

fn setup(origin: &Origin) -> Setup {
    Setup::to_origin(origin).with("kernel.accept_steering", "required").with("workers", WORKERS)
}

fn count(proxy: &Proxy, name: &str) -> u64 {
    proxy.metric(name) as u64
}

/// What became of many connections.
#[derive(Debug)]
struct Outcome {
    /// How many more the busiest worker had than the one with the fewest.
    spread: u64,
    /// How many were handed to another worker.
    handed: u64,
}

/// Opens many connections, then others while those end, and uses each.
fn use_many(proxy: &Proxy, address: SocketAddr) -> Outcome {
    let handed = || count(proxy, "sluice_downstream_connections_handed_total");
    let before = handed();
    let ask = |client: &mut Wire| {
        assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "hello");
    };
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| Wire::connect(address)).collect();
    clients.iter_mut().for_each(ask);
    let [most, fewest] = ["max", "min"].map(|end| count(proxy, &format!("sluice_workers_connections_{end}")));
    for client in &mut clients {
        *client = Wire::connect(address);
        ask(client);
    }
    let handed = handed() - before;
    drop(clients);
    let open = || count(proxy, "sluice_downstream_connections_open");
    poll("them to be gone", || (open() == 0).then_some(()));
    Outcome { spread: most - fewest, handed }
}

/// Another process takes over from the one with this pid, which ends: until then it may answer for its own numbers.
fn take_over(proxy: &Proxy, old: i32) -> Stray {
    let next = upgrade(proxy);
    let stat = || std::fs::read_to_string(format!("/proc/{old}/stat")).unwrap_or_default();
    poll("the old process to end", || {
        stat().rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z")).then_some(())
    });
    next
}

fn assert_is_even(outcome: Outcome) {
    assert!(outcome.spread <= FEW && outcome.handed == 0, "{outcome:?}");
}

fn config_of(proxy: &Proxy) -> Value {
    serde_json::from_str(&proxy.config.to_string()).unwrap()
}

#[test]
#[ignore = "needs root and BPF"]
fn connections_need_not_be_handed_over() {
    let origin = Origin::saying("hello");
    let proxy = setup(&origin).start().unwrap();
    assert_is_even(use_many(&proxy, proxy.address()));
}

#[test]
#[ignore = "needs root and BPF"]
fn another_process_chooses_by_its_own_workers() {
    let origin = Origin::saying("hello");
    let proxy = setup(&origin).start().unwrap();
    let first = take_over(&proxy, proxy.id() as i32);
    assert_is_even(use_many(&proxy, proxy.address()));
    let _second = take_over(&proxy, first.0);
    assert_is_even(use_many(&proxy, proxy.address()));
}

/// In between, a listener has other sockets than one for each worker. With as many workers as at first it is as at
/// first.
#[test]
#[ignore = "needs root and BPF"]
fn another_process_may_have_other_workers() {
    let origin = Origin::saying("hello");
    let proxy = setup(&origin).start().unwrap();
    let mut config = config_of(&proxy);
    let (mut old, mut processes) = (proxy.id() as i32, Vec::new());
    for workers in [WORKERS / 2, WORKERS * 2, WORKERS] {
        config["workers"] = workers.into();
        proxy.rewrite(&config);
        let next = take_over(&proxy, old);
        old = next.0;
        processes.push(next);
        let outcome = use_many(&proxy, proxy.address());
        if workers == WORKERS {
            assert_is_even(outcome);
        }
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn a_process_that_fails_to_take_over_changes_nothing() {
    let origin = Origin::saying("hello");
    let proxy = setup(&origin).start().unwrap();
    let mut config = config_of(&proxy);
    // By the time it finds that it cannot have this address, it has the sockets.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    config["admin"] = taken.local_addr().unwrap().to_string().into();
    proxy.rewrite(&config);
    let (code, said) = proxy.command("upgrade", &[]);
    assert!(code != Some(0) && said.contains("admin"), "{said}");
    assert_is_even(use_many(&proxy, proxy.address()));
}

#[test]
#[ignore = "needs root and BPF"]
fn a_listener_that_a_reload_adds_is_served_in_the_same_way() {
    let origin = Origin::saying("hello");
    let proxy = setup(&origin).start().unwrap();
    let mut config = config_of(&proxy);
    config["listeners"].as_array_mut().unwrap().push(json!({"name": "second", "address": "127.0.0.1:0"}));
    let (code, said) = proxy.reload(&config);
    assert_eq!(code, Some(0), "{said}");
    assert_is_even(use_many(&proxy, proxy.added("second")));
}
