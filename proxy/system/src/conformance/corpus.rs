//! The cases of a corpus for a run: all, one in several, or those that HTTP/2 and HTTP/3 can express.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use data_encoding::BASE64;
use serde_json::Value;

use super::relay::{Message, Planned, translate};

/// What the runner gets instead of the whole corpus.
#[derive(Default)]
pub(super) struct Chosen {
    /// The file, if it is not the runner's own.
    pub(super) file: Option<PathBuf>,
    /// The cases as messages.
    pub(super) plans: Planned,
    /// How many cases there are, and why the others are left out.
    pub(super) note: String,
}

/// Inflates the deflated parts of the corpus; Python is available, because the runners are written in it.
const INFLATE: &str = "\
import base64, json, sys, zlib
for line in open(sys.argv[1]):
    case = json.loads(line)
    for one in case['segments']:
        if 'zb64' in one:
            one['b64'] = base64.b64encode(zlib.decompress(base64.b64decode(one.pop('zb64')))).decode()
    print(json.dumps(case))
";

/// Every `every`th case.
///
/// # Errors
/// When a file cannot be read or written.
pub(super) fn every(every: usize, corpus: &Path, out: PathBuf) -> Result<Chosen> {
    let text = fs::read_to_string(corpus).with_context(|| corpus.display().to_string())?;
    let kept: Vec<&str> = text.lines().step_by(every).collect();
    let note = format!("{} of {} cases, one in {every}", kept.len(), text.lines().count());
    write(&out, &kept)?;
    Ok(Chosen { file: Some(out), note, ..Chosen::default() })
}

/// One in `every` of the cases that HTTP/2 and HTTP/3 can express; in a corpus of responses, those whose requests it can express.
///
/// # Errors
/// When a file cannot be read or written, or a case is not understood.
pub(super) fn expressible(every: usize, corpus: &Path, out: PathBuf) -> Result<Chosen> {
    let text = inflated(corpus)?;
    let mut plans = Planned::new();
    let mut kept = Vec::new();
    let mut left = BTreeMap::<&str, usize>::new();
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).context("a case")?;
        match plan(&case)? {
            Ok(None) => kept.push(line),
            Ok(Some((bytes, messages))) => {
                kept.push(line);
                plans.insert(bytes, messages);
            }
            Err(why) => *left.entry(why).or_default() += 1,
        }
    }
    let kept: Vec<&str> = kept.into_iter().step_by(every).collect();
    write(&out, &kept)?;
    let why: Vec<String> = left.iter().map(|(why, count)| format!("{why} {count}")).collect();
    let count = left.values().sum::<usize>();
    let note = format!(
        "{} cases, one in {every} of what has a message; not expressible: {count} ({})",
        kept.len(),
        why.join(", ")
    );
    Ok(Chosen { file: Some(out), plans, note })
}

type Plan = Option<(Vec<u8>, Vec<Message>)>;

/// The messages of a case; none for a response, whose request is built while the runner runs.
fn plan(case: &Value) -> Result<Result<Plan, &'static str>> {
    if let Some(extra) = case["req_extra"].as_str() {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{extra}\r\n");
        return Ok(translate(request.as_bytes(), true).map(|_| None));
    }
    let segments = case["segments"].as_array().context("segments")?;
    let [segment] = &segments[..] else {
        return Ok(Err("sent in parts"));
    };
    if case["half_close"] == true {
        return Ok(Err("half-closed connection"));
    }
    let bytes = BASE64.decode(segment["b64"].as_str().context("b64")?.as_bytes())?;
    let valid = case["expect"] == "forward";
    Ok(translate(&bytes, valid).map(|messages| Some((bytes, messages))))
}

fn inflated(corpus: &Path) -> Result<String> {
    let mut command = Command::new("python3");
    command.args(["-c", INFLATE]).arg(corpus).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().context("python3")?;
    ensure!(output.status.success(), "the corpus cannot be read");
    String::from_utf8(output.stdout).context("the corpus")
}

fn write(out: &Path, lines: &[&str]) -> Result<()> {
    fs::write(out, lines.join("\n") + "\n").with_context(|| out.display().to_string())
}
