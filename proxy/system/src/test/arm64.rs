//! The unit tests, and host tests with epoll, as programs for arm64 that qemu-user runs. Their system calls are those of
//! this machine's kernel; a kernel for arm64 is among the other kernels.

use anyhow::Result;
use sluice_testkit::process::RUNTIME;
use sluice_testkit::tally::Tally;
use sluice_testkit::{arm64, workspace};

use super::cargo;

pub(super) const NAME: &str = "arm64";
/// Emulated, a case takes ten times as long.
const CASES: &str = "16";

/// Tests that qemu-user makes impossible.
const IMPOSSIBLE: [(&str, &str); 4] = [
    ("hook_gets_all_arguments_and_must_succeed", "qemu-user hides that a program does not exist"),
    ("this_process_has_all_numbers", "qemu-user has a /proc/self/stat of its own"),
    ("after_a_kill_the_state_is_the_old_or_the_new", "it starts itself, which needs binfmt_misc"),
    ("hidden_listener_keeps_its_queue_and_gets_no_new_connection", "qemu-user lacks SO_BINDTOIFINDEX"),
];

/// Host tests that qemu-user makes impossible, for it has neither io_uring nor BPF, and needs memory of its own.
const IMPOSSIBLE_ON_HOST: [(&str, &str); 8] = [
    ("doctor::", "qemu-user has no bpf and no io_uring"),
    ("a_slow_application_blocks_only_its_upload", "it measures memory, and sees qemu-user's as well"),
    (
        "a_slow_reader_blocks_only_its_exchange_and_costs_little",
        "it measures memory, and sees qemu-user's as well",
    ),
    ("services::re", "it clears the variable by which qemu-user finds libraries"),
    ("signals_during_startup_are_handled_afterwards", "qemu-user ends by an early signal"),
    ("top::", "qemu-user cannot set up a terminal"),
    ("a_process_that_does_not_become_ready_changes_nothing", "qemu-user hides that a program does not exist"),
    ("the_engine_changes_with_an_upgrade", "qemu-user has no io_uring"),
];

/// Runs only when named: everything is compiled once more.
///
/// # Errors
/// When cargo cannot be run.
pub(super) fn test(tally: &mut Tally) -> Result<()> {
    tally.heading("as programs for arm64");
    if arm64::IS_NATIVE {
        tally.skip(NAME, 1, "this machine is arm64: every tier is");
        return Ok(());
    }
    if let Err(error) = arm64::prepare() {
        tally.skip(NAME, 1, &format!("{error:#}"));
        return Ok(());
    }
    let variables = arm64::variables();
    let mut variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    variables.extend([("PROPTEST_CASES", CASES), (RUNTIME, "epoll")]);
    // Developer commands are for the machine that they run on.
    let units = ["--target", arm64::TRIPLE, "--workspace", "--exclude", "xtask", "--lib", "--bins"];
    run("arm64-units", &units, &IMPOSSIBLE, &variables, tally)?;
    let sluice = workspace::target()?.join(arm64::TRIPLE).join("debug/sluice");
    let host = ["--target", arm64::TRIPLE, "--package", "sluice", "--test", "it"];
    if !arm64::runs_directly(&sluice) {
        let reason = "the kernel does not run such programs by itself: apt-get install qemu-user-static binfmt-support";
        tally.skip("arm64-it", 1, reason);
        return Ok(());
    }
    run("arm64-it", &host, &IMPOSSIBLE_ON_HOST, &variables, tally)
}

fn run(
    name: &str,
    selected: &[&str],
    impossible: &[(&str, &str)],
    variables: &[(&str, &str)],
    tally: &mut Tally,
) -> Result<()> {
    let mut arguments = [selected, &["--"]].concat();
    for (test, reason) in impossible {
        tally.skip(&format!("{name}::{test}"), 1, reason);
        arguments.extend(["--skip", *test]);
    }
    cargo::whole(name, &arguments, variables, tally)
}
