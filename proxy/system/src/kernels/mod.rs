//! sluice on other kernels than this host's: Debian's, booted in qemu without KVM, with only the tests in them. One of
//! them is for arm64, and runs by name, because everything is compiled once more for it.
//!
//! This needs neither root nor BPF here. A guest runs the same as the kernel tier on the host, except what takes an
//! emulated processor too long. Each guest has one processor, because Linux 6.1 does not boot with two and this clock,
//! and takes one core.

mod archive;
mod contents;
mod guest;
mod image;
mod transcript;
mod userland;

use std::thread;

use anyhow::{Result, anyhow, bail};
use contents::Built;
use image::Image;
use sluice_testkit::arm64;
use sluice_testkit::packages::{self, Tools};
use sluice_testkit::process::find_program;
use sluice_testkit::ship::Machine;
use sluice_testkit::tally::Tally;
use sluice_testkit::workspace::root;
use transcript::Part;

const NAME: &str = "kernels";

/// The tested kernels.
const KERNELS: [Kernel; 3] = [
    Kernel { machine: Machine::Native, version: "6.1", bypass: Bypass::Refused("check fionread") },
    Kernel { machine: Machine::Native, version: "6.12", bypass: Bypass::Used },
    Kernel { machine: Machine::Arm64, version: "6.12", bypass: Bypass::Used },
];

/// A kernel of Debian.
struct Kernel {
    machine: Machine,
    /// Prefix of its version.
    version: &'static str,
    bypass: Bypass,
}

/// How much of the tests is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// As much as fits into two minutes of emulation.
    Brief,
    /// As much as fits into a quarter of an hour.
    Whole,
}

/// The expected result for sluice.
#[derive(Clone, Copy)]
enum Bypass {
    /// Bypass, direct return and splice are used.
    Used,
    /// Its programs load, but this check of the self-test finds that applications would be misled.
    Refused(&'static str),
}

/// Tests of the kernel tier that are always skipped: repetitive ones, random ones, and those independent of the kernel.
/// They take minutes if each instruction is emulated.
const TOO_LONG: [&str; 16] = [
    "bounds::many_slow_readers",
    "bounds::unread_messages",
    "direct::adversary::",
    "direct::slow::",
    "direct_head::the_cost",
    "equivalence::",
    "first_process::",
    "full_disk::",
    "joined::order_is_kept_while",
    "joined::ten_thousand_messages",
    "killed::",
    "memory::",
    "namespaces::equal_loopback",
    // Its budgets leave 2 s of work to a self-test that may take 2 s.
    "selftest::the_self_test_passes_with_all",
    "spliced::random_streams",
    "spliced::readers_that_do_not_read",
];

/// Tests that need packets handled by another core: a guest has one.
const TWO_CORES: [&str; 2] =
    ["with_steered_packets", "namespaces::early_bytes_stay_in_order_with_any_namespace"];

/// Tests that start with a successful self-test.
const BYPASS_USED: [&str; 10] = [
    "data_path::",
    "direct::",
    "mptcp_is_served",
    "relayed::",
    "selftest::direct_return_fails",
    "selftest::direct_return_passes",
    "selftest::the_self_test_passes",
    "selftest::a_missing_budget",
    "strangers::no_descriptor",
    "strangers::other_processes",
];

/// Tests of the kernel tier that run unless all are requested: each assist in use, and each self-test.
const BRIEF: [&str; 17] = [
    "accept_steering::connections_need",
    "bans::",
    "bounds::",
    "clients::clients_of_our_listener",
    "data_path::a_drain",
    "data_path::bypass_works_for_an",
    "data_path::only_complete_requests",
    "direct::scripts::a_connection_is_reused",
    "joined::a_close_right_after",
    "leftovers::",
    "odd_sockets::a_socket_with_a_ulp",
    "relayed::a_splicing_relay",
    "selftest::",
    "splice::",
    "spliced::a_close_right_after",
    "strangers::",
    "unread::unread_bytes_are",
];
/// The same for the host tests.
const BRIEF_HOST_TESTS: [&str; 3] =
    ["early_answers::bodies_flow_in_both", "tunnels::a_requested_upgrade", "tunnels::a_reset_of_a_tunnel"];

/// The variable that enables assists in the host tests.
const ASSISTS: &str = "SLUICE_TEST_ASSISTS";
/// Modules of the host tests that run with the assists: those that move most bytes.
const HOST_TESTS: [&str; 2] = ["early_answers::", "tunnels::"];

/// Whether only other kernels are requested.
pub(crate) fn is_named(filter: &str) -> bool {
    filter == NAME || KERNELS.iter().any(|kernel| kernel.name() == filter)
}

/// Boots each requested kernel.
///
/// # Errors
/// When the tests cannot be built, or the result of a guest cannot be stored.
pub(crate) fn run(extent: Extent, tally: &mut Tally) -> Result<()> {
    let wanted: Vec<&Kernel> = KERNELS.iter().filter(|kernel| tally.wants(&kernel.name())).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    tally.heading("other kernels");
    if let Some(reason) = obstacle() {
        tally.skip("kernels", wanted.len(), &reason);
        return Ok(());
    }
    let mut found = Vec::new();
    for kernel in wanted {
        if kernel.machine == Machine::Arm64 {
            if tally.filter().is_none() {
                tally.skip(&kernel.name(), 1, "needs a separate build; run by name: cargo xtask test arm64");
                continue;
            }
            if let Err(error) = prepare_arm64() {
                tally.skip(&kernel.name(), 1, &format!("{error:#}"));
                continue;
            }
        }
        match Image::find(kernel.machine, kernel.version)? {
            Some(image) => found.push((kernel, image, Built::prepare(kernel.machine)?)),
            None => tally.skip(&kernel.name(), 1, "neither apt nor target/xtask/kernels has such a kernel"),
        }
    }
    let said: Vec<Result<Vec<String>>> = thread::scope(|scope| {
        let guests =
            found.iter().map(|(kernel, image, built)| scope.spawn(move || kernel.boot(extent, image, built)));
        let guests: Vec<_> = guests.collect();
        guests.into_iter().map(|guest| guest.join().unwrap_or_else(|_| Err(anyhow!("panicked")))).collect()
    });
    for ((kernel, ..), said) in found.iter().zip(said) {
        match said {
            Ok(lines) => kernel.settle(&lines, tally),
            Err(error) => tally.settle(&kernel.name(), Err(error)),
        }
    }
    Ok(())
}

/// Installs what the guest for arm64 needs.
fn prepare_arm64() -> Result<()> {
    arm64::prepare()?;
    packages::add_architecture("arm64")?;
    match find_program(guest::program(Machine::Arm64)) {
        Some(_) => Ok(()),
        None => packages::install(&["qemu-system-arm"]),
    }
}

/// Why guests are not possible here, if so.
fn obstacle() -> Option<String> {
    if std::env::consts::ARCH != "x86_64" {
        return Some("the packages are for x86-64".to_owned());
    }
    Tools::prepare().lack(&[
        guest::program(Machine::Native),
        "bpftool",
        "busybox",
        "dpkg",
        "ip",
        "nsenter",
        "strip",
        "unshare",
    ])
}

impl Kernel {
    fn name(&self) -> String {
        match self.machine {
            Machine::Native => format!("{NAME}::{}", self.version),
            Machine::Arm64 => format!("{NAME}::{}-arm64", self.version),
        }
    }

    fn boot(&self, extent: Extent, image: &Image, built: &Built) -> Result<Vec<String>> {
        let archive = built.archive(image, &self.script(extent))?;
        guest::boot(&self.name().replace("::", "-"), image, &archive)
    }

    /// The script of the guest.
    fn script(&self, extent: Extent) -> String {
        let (assists, refused) = match self.bypass {
            Bypass::Used => ("required", &[][..]),
            Bypass::Refused(_) => ("auto", &BYPASS_USED[..]),
        };
        let skipped = TOO_LONG.iter().chain(&TWO_CORES).chain(refused).map(|name| format!(" --skip={name}"));
        let folder = root().join("proxy/sluice");
        let (kernel, host) = match extent {
            Extent::Brief => (&BRIEF[..], &BRIEF_HOST_TESTS[..]),
            Extent::Whole => (&[][..], &HOST_TESTS[..]),
        };
        format!(
            "cd {}\npart doctor sluice doctor --json\npart kernel kernel --ignored {}{}\n\
             export {ASSISTS}={assists}\npart it it {}\n",
            folder.display(),
            kernel.join(" "),
            skipped.collect::<String>(),
            host.join(" ")
        )
    }

    /// Counts the results of a guest.
    fn settle(&self, lines: &[String], tally: &mut Tally) {
        let (parts, all) = transcript::parts(lines);
        for part in &parts {
            let name = format!("{}::{}", self.name(), part.name);
            match part.name.as_str() {
                "doctor" => tally.settle(&name, self.judge_doctor(part)),
                "complaints" => tally.settle(&name, judge_complaints(part)),
                _ if part.lines.iter().filter(|line| tally.read_line(&name, line)).count() == 1 => {}
                _ => tally.settle(&name, Err(anyhow!("ended without a result\n{}", part.tail()))),
            }
        }
        let whole = all.map(str::to_owned).ok_or_else(|| {
            anyhow!(
                "the guest has exited early: see target/xtask/logs/*-{}.log",
                self.name().replace("::", "-")
            )
        });
        tally.settle(&self.name(), whole);
    }

    /// Whether sluice uses what it must use there, and does not use the rest only for the expected reason.
    fn judge_doctor(&self, part: &Part) -> Result<String> {
        let report: serde_json::Value = serde_json::from_str(&part.lines.join("\n"))?;
        let used = |assist: &str| report["assists"][assist]["used"] == true;
        let reasons = report["assists"]["bypass"]["reasons"].to_string();
        if !used("splice") {
            bail!("splice is not used: {}", report["assists"]["splice"]);
        }
        // A guest has one core, so that there is one worker and no choice.
        if report["assists"]["accept_steering"]["host_can"] != true {
            bail!("accept_steering cannot be used: {}", report["assists"]["accept_steering"]);
        }
        match self.bypass {
            Bypass::Used if used("bypass") && used("direct_return") => Ok("all assists are used".to_owned()),
            Bypass::Refused(check) if !used("bypass") && reasons.contains(check) => Ok(reasons),
            _ => bail!("assists: {}", report["assists"]),
        }
    }
}

/// The kernel must not complain.
fn judge_complaints(part: &Part) -> Result<String> {
    if part.lines.is_empty() { Ok(String::new()) } else { bail!("the kernel says\n{}", part.tail()) }
}
