//! The eBPF programs on real sockets: needs root, a cgroup2 and BPF. `cargo xtask test --tier kernel` runs these.
//!
//! Ignored by default, because they need privileges and attach to the root cgroup; they only touch sockets that a test
//! marks. Nothing depends on timing: what must happen is polled for with a limit.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod support;
#[path = "../it/support/mod.rs"]
#[allow(dead_code, unused_imports, reason = "made for the host tests, which use all of it")]
mod proxy_support;

mod accept_steering;
mod bans;
mod bounds;
mod clients;
mod data_path;
mod direct_head;
mod direct;
mod equivalence;
mod first_process;
mod full_disk;
mod joined;
mod killed;
mod leftovers;
mod memory;
mod namespace;
mod namespaces;
mod odd_sockets;
mod proxy;
mod relayed;
mod selftest;
mod splice;
mod spliced;
mod strangers;
mod unread;
