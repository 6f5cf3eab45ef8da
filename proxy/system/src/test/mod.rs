//! `cargo xtask test`: every tier in turn, with one tally at the end. Contains no tests itself.

mod arm64;
mod cargo;
mod miri;
mod pebble;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use nix::unistd::geteuid;
use sluice_testkit::packages::Tools;
use sluice_testkit::process::RUNTIME;
use sluice_testkit::tally::Tally;
use sluice_testkit::{pinned, workspace};

use crate::conformance::{Judged, Way};
use crate::kernels::Extent;
use crate::storm::{self, Weather};
use crate::{apps, conformance, containers, differential, kernels, operate, page, tls, trace};

/// What to run.
#[derive(Args, Default)]
pub(crate) struct Options {
    /// Only tests and checks whose name contains this.
    filter: Option<String>,
    /// Only one tier.
    #[arg(long)]
    tier: Option<Tier>,
    /// Also transfer 1 GB through sluice in each direction.
    #[arg(long)]
    pub(crate) big: bool,
    /// Also run the tests on other kernels that take a quarter of an hour there.
    #[arg(long)]
    whole: bool,
    /// Value of `kernel.bypass` in checks of the kernel tier with joined connections; a value other than `required`
    /// shows whether joining makes a check fail.
    #[arg(long, hide = true)]
    joined: Option<String>,
    /// Duration of the mix-up storm; a minute is the default.
    #[arg(long)]
    minutes: Option<u64>,
    /// Seed of the storm's choices and the differential fuzzer's cases.
    #[arg(long)]
    seed: Option<u64>,
    /// What the storm's origins may do, by name; `!name` excludes one.
    #[arg(long, hide = true, value_delimiter = ',')]
    modes: Vec<String>,
    /// Number of cases of the differential fuzzer.
    #[arg(long)]
    cases: Option<u64>,
    /// A binary to use instead of the release build.
    #[arg(long, hide = true)]
    proxy_bin: Option<PathBuf>,
}

/// Tests by their requirements.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Tier {
    /// No kernel feature, no network.
    Pure,
    /// Loopback sockets, unprivileged: the proxy's own tests with each engine, real servers, hostile input. If the
    /// variable SLUICE_TEST_RUNTIME is set, everything uses the engine that it names.
    Host,
    /// Root and eBPF: the tracing scripts on real servers.
    Kernel,
}

/// Runs the requested tests and prints `tests: N passed, N failed, N skipped` last.
///
/// # Errors
/// When anything failed.
pub(crate) fn test(options: &Options) -> Result<()> {
    let mut tally = Tally::new(options.filter.clone());
    let extent = if options.whole { Extent::Whole } else { Extent::Brief };
    // When named, these need nothing that the tiers build first.
    let is_alone = match options.filter.as_deref() {
        Some(filter) if storm::is_named(filter) => run_storm(options, &mut tally).map(|()| true)?,
        Some(filter) if kernels::is_named(filter) => kernels::run(extent, &mut tally).map(|()| true)?,
        Some(arm64::NAME) => {
            arm64::test(&mut tally)?;
            kernels::run(extent, &mut tally).map(|()| true)?
        }
        Some(miri::NAME) => miri::test(&mut tally).map(|()| true)?,
        _ => false,
    };
    let wanted = |tier| !is_alone && options.tier.is_none_or(|only| only == tier);
    if wanted(Tier::Pure) {
        pure(&mut tally)?;
    }
    let mut judged = Judged::new();
    if wanted(Tier::Host) {
        judged = host(options, &mut tally)?;
    }
    if wanted(Tier::Kernel) {
        kernel(options, &judged, &mut tally)?;
        if tally.filter().is_none() {
            kernels::run(extent, &mut tally)?;
        }
    }
    tally.list_failures();
    println!("took {} s", tally.elapsed_secs());
    println!("{}", tally.summary());
    if tally.failed() > 0 {
        bail!("{} tests failed", tally.failed());
    }
    Ok(())
}

fn pure(tally: &mut Tally) -> Result<()> {
    tally.heading("pure tier");
    cargo::test("units", &["--workspace", "--lib", "--bins"], &[], tally)?;
    if tally.filter().is_none() {
        tally.skip(miri::NAME, 1, "needs a separate build; run by name: cargo xtask test miri");
        tally.skip(arm64::NAME, 1, "needs a separate build; run by name: cargo xtask test arm64");
    }
    cargo::test("docs", &["--workspace", "--doc"], &[], tally)
}

/// The results for hostile input are compared with those of joined connections.
fn host(options: &Options, tally: &mut Tally) -> Result<Judged> {
    tally.heading("host tier");
    let plan = differential::Plan::new(options.seed, options.cases);
    if tally.filter().is_some_and(differential::is_alone) {
        differential::run(plan, &binary(options)?, &Tools::prepare(), tally)?;
        return Ok(Judged::new());
    }
    if tally.filter().is_none() {
        // Some of the host tests are judged by programs that these bring, and are skipped without.
        Tools::prepare();
    }
    let programs = pebble::environment(tally);
    let threads = threads();
    let at_once = ("RUST_TEST_THREADS", threads.as_str());
    let mut programs: Vec<_> = programs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    programs.push(at_once);
    by_each_engine(&programs, at_once, tally)?;
    run_storm(options, tally)?;
    page::run(|| binary(options), tally)?;
    operate::run(|| binary(options), tally)?;
    tls::run(|| binary(options), tally)?;
    replay(tally)?;
    let ways = [Way::Copy, Way::Held, Way::Tls(1), Way::Http2(1), Way::Http3(1)];
    let hostile_names = ways.into_iter().flat_map(Way::names);
    let mut names = apps::names().chain(hostile_names).chain(differential::names());
    if !names.any(|name| tally.wants(&name)) {
        return Ok(Judged::new());
    }
    let binary = binary(options)?;
    let tools = Tools::prepare();
    tally.heading("real servers");
    apps::run(&binary, options.big, &tools, tally)?;
    differential::run(plan, &binary, &tools, tally)?;
    let judged = hostile(Way::Copy, &binary, &Judged::new(), &tools, tally)?;
    let everything = tally.wants("");
    let sample = if everything { SAMPLE } else { 1 };
    hostile(Way::Tls(sample), &binary, &judged, &tools, tally)?;
    hostile(Way::Http2(sample), &binary, &judged, &tools, tally)?;
    hostile(Way::Http3(sample), &binary, &judged, &tools, tally)?;
    if everything {
        // Two minutes that the whole run can do without.
        let reason = "runs only by name: cargo xtask test conformance";
        tally.skip("conformance_held", Way::Held.names().count(), reason);
    } else {
        hostile(Way::Held, &binary, &judged, &tools, tally)?;
    }
    Ok(judged)
}

/// The proxy's own tests: with the named engine, otherwise with ours and then the others. If io_uring is denied this is
/// epoll, which sluice then selects itself.
fn by_each_engine(programs: &[(&str, &str)], at_once: (&str, &str), tally: &mut Tally) -> Result<()> {
    let whole = ["--package", "sluice", "--test", "it"];
    if std::env::var_os(RUNTIME).is_some() {
        return cargo::test("it", &whole, programs, tally);
    }
    if let Some(reason) = io_uring_denied() {
        tally.skip("host tier with io_uring and tokio-uring", 2, &reason);
        let by_epoll = [programs, &[(RUNTIME, "epoll")]].concat();
        return cargo::test("it-epoll", &whole, &by_epoll, tally);
    }
    cargo::test("it", &whole, programs, tally)?;
    for (name, engine) in OTHER_ENGINES {
        let arguments = [&whole[..], &["--"], &BESIDE_THE_ENGINE[..]].concat();
        cargo::test(name, &arguments, &[(RUNTIME, engine), at_once], tally)?;
    }
    Ok(())
}

/// Tests that pass with our own driver must also pass with the other engines.
const OTHER_ENGINES: [(&str, &str); 2] = [("it-tokio-uring", "tokio_uring"), ("it-epoll", "epoll")];

/// Number of concurrent host tests: a test mostly waits, so one per core would leave the cores idle half of the time.
fn threads() -> String {
    std::env::var("RUST_TEST_THREADS").unwrap_or_else(|_| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (cores * 3).to_string()
    })
}

/// Host tests that start no proxy, or only one that serves a single request.
const BESIDE_THE_ENGINE: [&str; 4] =
    ["--skip=cli::", "--skip=logs::", "--skip=monitoring::", "--skip=packaging::"];

/// The storms of the kernel paths are included, because all of them share one duration.
fn run_storm(options: &Options, tally: &mut Tally) -> Result<()> {
    let weather = Weather { minutes: options.minutes, seed: options.seed, modes: options.modes.clone() };
    let obstacle = |binary: &Path| match bpf_denied() {
        Some(reason) => Ok(Some(reason)),
        None => apps::bypass_obstacle(binary),
    };
    storm::run(&weather, || binary(options), obstacle, tally)
}

/// One in this many cases also uses TLS, HTTP/2 and HTTP/3, unless the suite is named: the layers above are the same.
const SAMPLE: usize = 8;

/// kamal-proxy's command lines, run by sluice and by kamal-proxy itself.
const REPLAY: &str = "kamal";

/// Runs only when named, because kamal-proxy must be fetched and built first.
fn replay(tally: &mut Tally) -> Result<()> {
    if tally.filter() != Some(REPLAY) {
        return Ok(());
    }
    tally.heading("kamal-proxy");
    let program = match pinned::tool("kamal-proxy") {
        Ok(program) => program.display().to_string(),
        Err(error) => {
            tally.skip(REPLAY, 1, &format!("kamal-proxy is not available: {error:#}"));
            return Ok(());
        }
    };
    let arguments = ["--package", "sluice", "--test", "it", "--", "services::re"];
    cargo::test(REPLAY, &arguments, &[("SLUICE_TEST_KAMAL_PROXY", &program)], tally)
}

fn hostile(way: Way<'_>, binary: &Path, before: &Judged, tools: &Tools, tally: &mut Tally) -> Result<Judged> {
    let count = way.names().filter(|name| tally.wants(name)).count();
    if count == 0 {
        return Ok(Judged::new());
    }
    tally.heading("conformance");
    match conformance_folder() {
        Some(folder) => conformance::run(way, &folder, binary, before, tools, tally),
        None => {
            let reason = "no ../shared/conformance, and SLUICE_CONFORMANCE is not set";
            tally.skip("conformance", count, reason);
            Ok(Judged::new())
        }
    }
}

fn kernel(options: &Options, judged: &Judged, tally: &mut Tally) -> Result<()> {
    tally.heading("kernel tier");
    if let Some(reason) = io_uring_denied() {
        tally.skip("kernel tier", 1, &reason);
        return Ok(());
    }
    trace::run(|| binary(options), tally)?;
    if let Some(reason) = bpf_denied().or_else(|| Tools::prepare().lack(&["bpftool"])) {
        tally.skip("kernel", 1, &reason);
        return Ok(());
    }
    if tally.filter().is_some_and(differential::is_alone) {
        return joined(options, judged, tally);
    }
    containers::run(is_unoptimized(), tally)?;
    cargo::test("kernel", &["--package", "sluice", "--test", "kernel", "--", "--ignored"], &[], tally)?;
    // Tests that pass with copying must also pass with the kernel assists.
    let assists = ("SLUICE_TEST_ASSISTS", "required");
    let arguments = [&["--package", "sluice", "--test", "it", "--"], &BESIDE_THE_DATA_PATH[..]].concat();
    cargo::test("it-assisted", &arguments, &[assists], tally)?;
    joined(options, judged, tally)
}

/// Host tests that do not depend on the kernel assists, which add half a second to each start of a proxy.
const BESIDE_THE_DATA_PATH: [&str; 11] = [
    "--skip=acme::",
    "--skip=cli::",
    "--skip=debug::",
    "--skip=doctor::",
    "--skip=logs::",
    "--skip=monitoring::",
    "--skip=packaging::",
    "--skip=services::re",
    "--skip=status::",
    "--skip=top::",
    "--skip=tracing::",
];

/// Real servers and hostile input again, with joined connections.
fn joined(options: &Options, judged: &Judged, tally: &mut Tally) -> Result<()> {
    let plan = differential::Plan::new(options.seed, options.cases);
    let bypass = options.joined.as_deref().unwrap_or(apps::REQUIRED);
    let way = Way::Joined(bypass);
    let names = apps::joined_names().chain(way.names()).chain(differential::joined_names());
    let names = names.chain(operate::joined_names());
    let count = names.filter(|name| tally.wants(name)).count();
    if count == 0 {
        return Ok(());
    }
    let binary = binary(options)?;
    if bypass == apps::REQUIRED
        && let Some(reason) = apps::bypass_obstacle(&binary)?
    {
        tally.skip("bypass", count, &reason);
        return Ok(());
    }
    let tools = Tools::prepare();
    tally.heading("real servers, with joined connections");
    apps::run_joined(&binary, bypass, &tools, tally)?;
    operate::run_joined(&binary, tally)?;
    differential::run_joined(plan, &binary, bypass, tally)?;
    hostile(way, &binary, judged, &tools, tally).map(drop)
}

/// Why the eBPF programs cannot be tested here, if so.
fn bpf_denied() -> Option<String> {
    if !geteuid().is_root() {
        return Some("eBPF needs root: try again with sudo".to_owned());
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Some("this kernel has no type information (CONFIG_DEBUG_INFO_BTF)".to_owned());
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    if !mounts.lines().any(|line| line.split(' ').nth(2) == Some("cgroup2")) {
        return Some("no cgroup2 is mounted".to_owned());
    }
    None
}

fn binary(options: &Options) -> Result<PathBuf> {
    match &options.proxy_bin {
        Some(binary) => Ok(binary.clone()),
        // The binary built by the previous tiers' tests, to save time.
        None if is_unoptimized() => workspace::test_binary(),
        None => workspace::release_binary(),
    }
}

fn is_unoptimized() -> bool {
    std::env::var_os("SLUICE_TEST_UNOPTIMIZED").is_some()
}

/// Why io_uring is not available here, if so.
fn io_uring_denied() -> Option<String> {
    let error = io_uring::IoUring::new(8).err()?;
    let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    Some(match sysctl.as_deref().map(str::trim) {
        Ok(value @ ("1" | "2")) => {
            format!("io_uring is denied by sysctl kernel.io_uring_disabled={value} ({error})")
        }
        _ => format!("io_uring is denied, by seccomp or a missing kernel option ({error})"),
    })
}

fn conformance_folder() -> Option<PathBuf> {
    let folder = match std::env::var_os("SLUICE_CONFORMANCE") {
        Some(folder) => PathBuf::from(folder),
        None => workspace::root().join("../shared/conformance"),
    };
    let complete = |folder: &Path| folder.join("run-requests.py").is_file();
    complete(&folder).then(|| folder.canonicalize().unwrap_or(folder))
}
