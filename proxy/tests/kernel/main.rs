//! The eBPF programs on real sockets: root, a cgroup2, BPF. `cargo xtask test --tier kernel` runs these.
//!
//! Ignored by default, for they need privilege and attach to the root of the cgroups; only sockets that a test
//! marks are touched. Nothing depends on timing: what must happen is polled for within bounds.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod support;

mod bounds;
mod clients;
mod joined;
mod leftovers;
mod selftest;
mod strangers;
mod unread;
