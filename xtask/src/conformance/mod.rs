//! Hostile input from the conformance folder, thrown at the release binary; the bars it must hold.
//!
//! The cases and runners are not part of this project: without the folder nothing runs.

mod verdicts;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::Signal;

use crate::process::{Process, bound, find_program, free_ports};
use crate::test::{Tally, Tools};
use crate::workspace;
use verdicts::{Bar, Disputed};

const PROXY: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Where the runner listens. Not the proxy's address, so that the runners' own connections differ.
const BACKEND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Keys set for the proxy under test. The runner lets an upstream stall for 7 s, before its answer and
/// within it.
const SETTINGS: &[&str] = &[
    "access_log=off",
    "clusters.default.response_timeout_ms=5000",
    "clusters.default.body_idle_timeout_ms=5000",
];

/// Verdicts that we hold to be wrong; each is said aloud when it is met.
const DISPUTED: &[Disputed] = &[Disputed {
    id: "proxy/hop/0-Connection:close,X-Forwarded-F",
    verdict: "UNCLEAN",
    why: "the client's X-Forwarded-For, nominated by Connection, is removed as RFC 9110 7.6.1 says; the one \
          that arrives is made by sluice. Leaving it out because the client asks so would let anybody hide \
          from the origin (CVE-2022-31813)",
}];

/// One runner, how it is called and what it must say.
struct Suite {
    name: &'static str,
    script: &'static str,
    args: &'static [&'static str],
    bars: &'static [Bar],
}

const REQUEST_BARS: &[Bar] = &[
    Bar::none(&["SMUGGLED"]),
    Bar::none(&["AMBIGUOUS"]),
    Bar::none(&["UNCLEAN"]),
    Bar::none(&["REFUSED"]),
    Bar::none(&["HUNG"]),
    Bar::at_most(&["LENIENT"], 9),
];

const RESPONSE_BARS: &[Bar] = &[
    Bar::none(&["DESYNC"]),
    Bar::none(&["SILENT-TRUNCATION"]),
    Bar::none(&["CORRUPT"]),
    Bar::none(&["REFUSED"]),
    Bar::none(&["HUNG"]),
    Bar::at_most(&["LENIENT", "UNCLEAN"], 2),
];

/// Run side by side: they mostly wait.
const VERDICT_SUITES: &[Suite] = &[
    Suite {
        name: "conformance::requests_lenient",
        script: "run-requests.py",
        args: &["--profile", "lenient"],
        bars: REQUEST_BARS,
    },
    Suite {
        name: "conformance::requests_te_contains",
        script: "run-requests.py",
        args: &["--profile", "te-contains"],
        bars: REQUEST_BARS,
    },
    Suite { name: "conformance::responses", script: "run-responses.py", args: &[], bars: RESPONSE_BARS },
];

/// Run alone: it looks at memory and waits for deadlines.
const HAZARDS: &str = "conformance::hazards";
const HAZARDS_PASSED: usize = 11;

/// The names of all checks.
pub(crate) fn names() -> impl Iterator<Item = String> {
    let suites = VERDICT_SUITES.iter().map(|suite| suite.name);
    suites.chain([HAZARDS]).map(str::to_owned)
}

/// Runs every suite that the tally wants.
///
/// # Errors
/// When a log cannot be written. What a runner finds is counted, not an error.
pub(crate) fn run(folder: &Path, binary: &Path, tools: &Tools, tally: &mut Tally) -> Result<()> {
    if let Some(lack) = tools.lack(&["python3", "pgrep"]) {
        let count = names().filter(|name| tally.wants(name)).count();
        tally.skip("conformance", count, &lack);
        return Ok(());
    }
    let wanted = VERDICT_SUITES.iter().filter(|suite| tally.wants(suite.name));
    let done: Vec<(&str, Result<String>)> = thread::scope(|scope| {
        let running: Vec<_> =
            wanted.map(|suite| (suite, scope.spawn(|| run_suite(suite, folder, binary)))).collect();
        let join = |handle: thread::ScopedJoinHandle<'_, Result<String>>| {
            handle.join().unwrap_or_else(|_| Err(anyhow!("panicked")))
        };
        running.into_iter().map(|(suite, handle)| (suite.name, join(handle))).collect()
    });
    for (name, result) in done {
        tally.settle(name, result);
    }
    tally.check(HAZARDS, || run_hazards(folder, binary));
    Ok(())
}

fn run_suite(suite: &Suite, folder: &Path, binary: &Path) -> Result<String> {
    let short = short_name(suite.name);
    let out = workspace::scratch("conformance")?.join(format!("{short}.jsonl"));
    let proxy = Proxy::start(short, binary)?;
    let mut command = proxy.runner(folder, suite.script);
    command.args(suite.args).arg("--out").arg(&out);
    let lines = stream(short, &mut command).map_err(|error| proxy.explain(&error))?;
    let mut counts = verdicts::table(&lines)?;
    let cases = verdicts::cases(&std::fs::read_to_string(&out).context("runner's --out")?)?;
    verdicts::agree(&counts, &cases)?;
    for disputed in verdicts::set_aside(&mut counts, &cases, DISPUTED) {
        println!("{short}: disputed: {} {}: {}", disputed.verdict, disputed.id, disputed.why);
    }
    verdicts::judge(&counts, &cases, suite.bars)
}

fn run_hazards(folder: &Path, binary: &Path) -> Result<String> {
    let proxy = Proxy::start("hazards", binary)?;
    let mut command = proxy.runner(folder, "run-hazards.py");
    command.args(["--pid", &proxy.process.pid().to_string()]);
    let lines = stream("hazards", &mut command).map_err(|error| proxy.explain(&error))?;
    let failed: Vec<&str> =
        lines.iter().map(String::as_str).filter(|line| line.starts_with("FAIL ")).collect();
    let closing = lines.last().map_or("", String::as_str);
    if closing != format!("{HAZARDS_PASSED} passed, 0 failed") {
        bail!("`{closing}`\n{}\n{}", failed.join("\n"), proxy.process.tail());
    }
    Ok(closing.to_owned())
}

fn short_name(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// The proxy under test and the addresses of one run.
struct Proxy {
    process: Process,
    address: SocketAddr,
    backend: SocketAddr,
}

impl Proxy {
    fn start(name: &str, binary: &Path) -> Result<Self> {
        let [port] = free_ports(PROXY.into())?;
        let [backend] = free_ports(BACKEND.into())?;
        let address = SocketAddr::from((PROXY, port));
        let backend = SocketAddr::from((BACKEND, backend));
        let mut command = bound(binary);
        command.args(["run", "--listen", &address.to_string()]);
        command.args(["--to", &backend.to_string(), "--admin", "off"]);
        for setting in SETTINGS {
            command.args(["--set", setting]);
        }
        let log = workspace::scratch("logs")?.join(format!("conformance-{name}-sluice.log"));
        let mut process = Process::start("sluice", &mut command, log, Signal::SIGTERM)?;
        process.wait_ready(address)?;
        Ok(Self { process, address, backend })
    }

    /// An error of the runner, with what the proxy had to say.
    fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        anyhow!("{error:#}\n{}", self.process.tail())
    }

    /// The runner's command. It holds thousands of sockets, so it gets every descriptor there is.
    fn runner(&self, folder: &Path, script: &str) -> Command {
        let python = find_program("python3").unwrap_or_else(|| PathBuf::from("python3"));
        let mut command = bound("/bin/sh");
        command
            .args(["-c", "ulimit -n \"$(ulimit -Hn)\"; exec \"$0\" -Bu \"$@\""])
            .arg(python)
            .arg(folder.join(script))
            .arg(self.address.to_string())
            .args(["--backend", &self.backend.to_string()]);
        command
    }
}

/// Runs a command, showing each line as it comes and keeping them in a log.
fn stream(name: &str, command: &mut Command) -> Result<Vec<String>> {
    let path = workspace::scratch("logs")?.join(format!("conformance-{name}.log"));
    let mut log = File::create(&path).with_context(|| path.display().to_string())?;
    let errors = log.try_clone()?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .with_context(|| workspace::describe(command))?;
    let output = child.stdout.take().expect("stdout is piped above");
    let mut lines = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        println!("{name}: {line}");
        writeln!(log, "{line}")?;
        lines.push(line);
    }
    let status = child.wait()?;
    if !status.success() {
        let end = lines.last().map_or("", String::as_str);
        bail!("the runner ended with {status}: {end} (see {})", path.display());
    }
    Ok(lines)
}
