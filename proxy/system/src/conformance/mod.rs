//! Hostile input from the conformance folder, sent to the release binary, and the bars it must meet.
//!
//! The cases and runners are not part of this project: without the folder nothing runs.

mod corpus;
mod proxy;
mod relay;
mod suites;
mod verdicts;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use corpus::Chosen;
use proxy::Proxy;
use sluice_testkit::packages::Tools;
use sluice_testkit::tally::Tally;
use sluice_testkit::workspace;
use suites::{ANSWERED_AS_MESSAGES, DISPUTED, Suite, VERDICT_SUITES};
use verdicts::Case;

/// How long the runner waits for more where a verdict depends on silence, in seconds. Its own 0.3 s are too short for a
/// proxy that a busy machine did not schedule.
const PATIENCE: &str = "3";

/// Runs alone: it measures memory and waits for time limits.
const HAZARDS: &str = "hazards";
const HAZARDS_PASSED: usize = 11;

/// Compares the verdicts with those of copying, if both ran.
const SAME: &str = "same_verdicts";

/// How the proxy under test moves bytes.
#[derive(Clone, Copy)]
pub(crate) enum Way<'a> {
    /// `kernel.bypass: off`.
    Copy,
    /// As `Copy`, with buffered bodies. Without the hazards: they test how a slow side stops a fast one, and a
    /// buffering proxy does not stop it.
    Held,
    /// Connections to the runner are joined; `kernel.bypass` as given.
    Joined(&'a str),
    /// As `Copy`, over TLS: one case in this many. Without the hazards: they look at sockets and descriptors, which are
    /// not the proxy's here.
    Tls(usize),
    /// As `Copy`, over HTTP/2: one in this many of the cases that it can express. Without the hazards, as over TLS.
    Http2(usize),
    /// The same over HTTP/3.
    Http3(usize),
}

/// The cases of each suite that ran, with their verdicts.
pub(crate) type Judged = BTreeMap<&'static str, Vec<Case>>;

impl Way<'_> {
    fn group(self) -> &'static str {
        match self {
            Self::Copy => "conformance",
            Self::Held => "conformance_held",
            Self::Joined(_) => "conformance_bypass",
            Self::Tls(_) => "conformance_tls",
            Self::Http2(_) => "conformance_http2",
            Self::Http3(_) => "conformance_http3",
        }
    }

    fn bypass(&self) -> &str {
        match self {
            Self::Joined(bypass) => bypass,
            _ => "off",
        }
    }

    /// Whether every case should have a verdict.
    fn whole(self) -> bool {
        !matches!(self, Self::Tls(2..) | Self::Http2(_) | Self::Http3(_))
    }

    fn has_hazards(self) -> bool {
        matches!(self, Self::Copy | Self::Joined(_))
    }

    /// The cases of `corpus` for the runner.
    fn choose(self, corpus: &Path, out: PathBuf) -> Result<Chosen> {
        match self {
            Self::Tls(every) if every > 1 => corpus::every(every, corpus, out),
            Self::Http2(every) | Self::Http3(every) => corpus::expressible(every, corpus, out),
            _ => Ok(Chosen::default()),
        }
    }

    /// The names of all checks.
    pub(crate) fn names(self) -> impl Iterator<Item = String> {
        let suites = VERDICT_SUITES.iter().map(|suite| suite.name);
        let hazards = Some(HAZARDS).filter(|_| self.has_hazards());
        let same = Some(SAME).filter(|_| !matches!(self, Self::Copy));
        suites.chain(hazards).chain(same).map(move |name| self.name(name))
    }

    fn name(self, name: &str) -> String {
        format!("{}::{name}", self.group())
    }
}

/// Runs every requested suite; the verdicts of `before`, if it ran, must be the same.
///
/// # Errors
/// When a log cannot be written. Findings of a runner are counted, not errors.
#[expect(clippy::too_many_arguments, reason = "called for each way in which the suites run")]
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
        let running: Vec<_> = wanted
            .map(|suite| (suite, scope.spawn(|| run_suite(way, suite, folder, binary, before))))
            .collect();
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
    if way.has_hazards() {
        tally.check(&way.name(HAZARDS), || run_hazards(way, folder, binary));
    }
    if !matches!(way, Way::Copy) {
        compare(way, before, &judged, tally);
    }
    Ok(judged)
}

/// One check over all suites that ran both ways.
fn compare(way: Way<'_>, before: &Judged, after: &Judged, tally: &mut Tally) {
    let name = &way.name(SAME);
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
            let differences = verdicts::differences(before, after, way.whole());
            ensure!(differences.is_empty(), "{suite}: copied, then this way:\n{}", differences.join("\n"));
            if let Way::Http2(_) | Way::Http3(_) = way {
                alike(way, before, after)?;
            }
            count += after.len();
        }
        Ok(format!("{count} cases"))
    });
}

/// HTTP/2 and HTTP/3 must refuse what HTTP/1.1 refuses. The reverse is allowed, by their own rules, which the runner
/// cannot know: for requests that must be forwarded its verdict would have been REFUSED.
fn alike(way: Way<'_>, before: &[Case], after: &[Case]) -> Result<()> {
    let group = way.group();
    for id in verdicts::turned(before, after, true) {
        let known = ANSWERED_AS_MESSAGES.iter().find(|(known, _)| *known == id);
        let (_, why) = known.with_context(|| format!("{id}: refused, by {group} answered"))?;
        println!("{group} answered: {id}: {why}");
    }
    for id in verdicts::turned(before, after, false) {
        println!("{group} refused: {id}");
    }
    Ok(())
}

/// Cases of a suite, and the result.
type Ran = (Vec<Case>, Result<String>);

fn run_suite(way: Way<'_>, suite: &Suite, folder: &Path, binary: &Path, before: &Judged) -> Result<Ran> {
    let name = format!("{}-{}", way.group(), suite.name);
    let scratch = workspace::scratch("conformance")?;
    let out = scratch.join(format!("{name}.jsonl"));
    let chosen = way.choose(&folder.join(suite.corpus), scratch.join(format!("{name}-cases.jsonl")))?;
    if !chosen.note.is_empty() {
        println!("{name}: {}", chosen.note);
    }
    let proxy = Proxy::start(way, &name, binary, chosen.plans)?;
    let mut command = proxy.runner(folder, suite.script);
    command.args(suite.args).arg("--out").arg(&out);
    if let Some(file) = &chosen.file {
        command.arg("--corpus").arg(file);
    }
    let lines = stream(&name, &mut command).map_err(|error| proxy.explain(&error))?;
    let mut counts = verdicts::table(&lines)?;
    let mut cases = verdicts::cases(&std::fs::read_to_string(&out).context("runner's --out")?)?;
    verdicts::agree(&counts, &cases)?;
    let before = before.get(suite.name).map_or(&[][..], Vec::as_slice);
    if let Some(only) = verdicts::silent(&cases, before) {
        command.args(["--idle", PATIENCE, "--only", &only]);
        stream(&format!("{name}-patient"), &mut command).map_err(|error| proxy.explain(&error))?;
        let again = verdicts::cases(&std::fs::read_to_string(&out).context("runner's --out")?)?;
        for line in verdicts::correct(&mut cases, &mut counts, again) {
            println!("{name}: with {PATIENCE} s of patience: {line}");
        }
    }
    for disputed in verdicts::set_aside(&mut counts, &cases, DISPUTED) {
        println!("{name}: disputed: {} {}: {}", disputed.verdict, disputed.id, disputed.why);
    }
    let verdict = verdicts::judge(&counts, &cases, suite.bars)
        .and_then(|counts| proxy.joined(counts))
        .and_then(|counts| proxy.carried(counts, cases.len()));
    Ok((cases, verdict))
}

fn run_hazards(way: Way<'_>, folder: &Path, binary: &Path) -> Result<String> {
    let name = format!("{}-hazards", way.group());
    let proxy = Proxy::start(way, &name, binary, HashMap::new())?;
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

/// Runs a command, shows each line as it arrives, and stores them in a log.
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
