//! Hostile input from the conformance folder, thrown at the release binary; the bars it must hold.
//!
//! The cases and runners are not part of this project: without the folder nothing runs.

mod proxy;
mod verdicts;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::test::{Tally, Tools};
use crate::workspace;
use proxy::Proxy;
use verdicts::{Bar, Case, Disputed};

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
        name: "requests_lenient",
        script: "run-requests.py",
        args: &["--profile", "lenient"],
        bars: REQUEST_BARS,
    },
    Suite {
        name: "requests_te_contains",
        script: "run-requests.py",
        args: &["--profile", "te-contains"],
        bars: REQUEST_BARS,
    },
    Suite { name: "responses", script: "run-responses.py", args: &[], bars: RESPONSE_BARS },
];

/// Run alone: it looks at memory and waits for deadlines.
const HAZARDS: &str = "hazards";
const HAZARDS_PASSED: usize = 11;

/// Compares the verdicts with those of copying, where both ran.
const SAME: &str = "same_verdicts";

/// How the proxy under test moves bytes.
#[derive(Clone, Copy)]
pub(crate) enum Way<'a> {
    /// `kernel.bypass: off`.
    Copy,
    /// As `Copy`, and bodies are held until they are whole. The hazards are left out: they look at how a slow side
    /// stops a fast one, and what is held does not stop.
    Held,
    /// Its connections to the runner joined; `kernel.bypass` as given.
    Joined(&'a str),
}

/// The cases of each suite that ran, as they were judged.
pub(crate) type Judged = BTreeMap<&'static str, Vec<Case>>;

impl Way<'_> {
    fn group(self) -> &'static str {
        match self {
            Self::Copy => "conformance",
            Self::Held => "conformance_held",
            Self::Joined(_) => "conformance_bypass",
        }
    }

    fn bypass(&self) -> &str {
        match self {
            Self::Copy | Self::Held => "off",
            Self::Joined(bypass) => bypass,
        }
    }

    /// The names of all checks.
    pub(crate) fn names(self) -> impl Iterator<Item = String> {
        let suites = VERDICT_SUITES.iter().map(|suite| suite.name);
        let hazards = Some(HAZARDS).filter(|_| !matches!(self, Self::Held));
        let same = Some(SAME).filter(|_| !matches!(self, Self::Copy));
        suites.chain(hazards).chain(same).map(move |name| self.name(name))
    }

    fn name(self, name: &str) -> String {
        format!("{}::{name}", self.group())
    }
}

/// Runs every suite that the tally wants; the verdicts of `before`, if it ran, must be the same.
///
/// # Errors
/// When a log cannot be written. What a runner finds is counted, not an error.
pub(crate) fn run(
    way: Way<'_>,
    folder: &Path,
    binary: &Path,
    before: &Judged,
    tools: &Tools,
    tally: &mut Tally,
) -> Result<Judged> {
    if let Some(lack) = tools.lack(&["python3", "pgrep", "curl"]) {
        let count = way.names().filter(|name| tally.wants(name)).count();
        tally.skip(way.group(), count, &lack);
        return Ok(Judged::new());
    }
    let wanted = VERDICT_SUITES.iter().filter(|suite| tally.wants(&way.name(suite.name)));
    let done: Vec<(&'static str, Result<Ran>)> = thread::scope(|scope| {
        let running: Vec<_> =
            wanted.map(|suite| (suite, scope.spawn(|| run_suite(way, suite, folder, binary)))).collect();
        let join = |handle: thread::ScopedJoinHandle<'_, Result<Ran>>| {
            handle.join().unwrap_or_else(|_| Err(anyhow!("panicked")))
        };
        running.into_iter().map(|(suite, handle)| (suite.name, join(handle))).collect()
    });
    let mut judged = Judged::new();
    for (name, result) in done {
        let verdict = result.and_then(|(cases, verdict)| {
            judged.insert(name, cases);
            verdict
        });
        tally.settle(&way.name(name), verdict);
    }
    if !matches!(way, Way::Held) {
        tally.check(&way.name(HAZARDS), || run_hazards(way, folder, binary));
    }
    if !matches!(way, Way::Copy) {
        compare(&way.name(SAME), before, &judged, tally);
    }
    Ok(judged)
}

/// One check over all suites that ran both ways.
fn compare(name: &str, before: &Judged, after: &Judged, tally: &mut Tally) {
    let both: Vec<_> =
        after.iter().filter_map(|(suite, after)| Some((suite, before.get(suite)?, after))).collect();
    if both.is_empty() {
        let count = usize::from(tally.wants(name));
        tally.skip(name, count, "no suite ran both ways: leave out --tier");
        return;
    }
    tally.check(name, || {
        let mut count = 0;
        for (suite, before, after) in both {
            let differences = verdicts::differences(before, after);
            ensure!(differences.is_empty(), "{suite}: copied, then this way:\n{}", differences.join("\n"));
            count += after.len();
        }
        Ok(format!("{count} cases"))
    });
}

/// Cases of a suite, and how they were judged.
type Ran = (Vec<Case>, Result<String>);

fn run_suite(way: Way<'_>, suite: &Suite, folder: &Path, binary: &Path) -> Result<Ran> {
    let name = format!("{}-{}", way.group(), suite.name);
    let out = workspace::scratch("conformance")?.join(format!("{name}.jsonl"));
    let proxy = Proxy::start(way, &name, binary)?;
    let mut command = proxy.runner(folder, suite.script);
    command.args(suite.args).arg("--out").arg(&out);
    let lines = stream(&name, &mut command).map_err(|error| proxy.explain(&error))?;
    let mut counts = verdicts::table(&lines)?;
    let cases = verdicts::cases(&std::fs::read_to_string(&out).context("runner's --out")?)?;
    verdicts::agree(&counts, &cases)?;
    for disputed in verdicts::set_aside(&mut counts, &cases, DISPUTED) {
        println!("{name}: disputed: {} {}: {}", disputed.verdict, disputed.id, disputed.why);
    }
    let verdict = verdicts::judge(&counts, &cases, suite.bars).and_then(|counts| proxy.joined(counts));
    Ok((cases, verdict))
}

fn run_hazards(way: Way<'_>, folder: &Path, binary: &Path) -> Result<String> {
    let name = format!("{}-hazards", way.group());
    let proxy = Proxy::start(way, &name, binary)?;
    let mut command = proxy.runner(folder, "run-hazards.py");
    command.args(["--pid", &proxy.process.pid().to_string()]);
    let lines = stream(&name, &mut command).map_err(|error| proxy.explain(&error))?;
    let failed: Vec<&str> =
        lines.iter().map(String::as_str).filter(|line| line.starts_with("FAIL ")).collect();
    let closing = lines.last().map_or("", String::as_str);
    if closing != format!("{HAZARDS_PASSED} passed, 0 failed") {
        bail!("`{closing}`\n{}\n{}", failed.join("\n"), proxy.process.tail());
    }
    proxy.joined(closing.to_owned())
}

/// Runs a command, showing each line as it comes and keeping them in a log.
fn stream(name: &str, command: &mut Command) -> Result<Vec<String>> {
    let path = workspace::scratch("logs")?.join(format!("{name}.log"));
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
