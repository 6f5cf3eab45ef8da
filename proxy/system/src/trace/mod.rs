//! `cargo xtask trace`: the scripts in `scripts/`, targeted, attached, stopped and shown. Counts nothing itself.

pub(crate) mod checks;
mod http;
mod names;
mod puma;
mod report;
mod session;
mod target;
mod tracefs;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use report::Report;
use serde_json::{Value, json};
use session::{Event, OnInterrupt, Session, obstacle};
use sluice_testkit::workspace;
use target::{Subject, Target};
use tracefs::Tracefs;

/// A script and the meaning of its first argument.
const SCRIPTS: &[(&str, Subject)] = &[
    ("accept_queue", Subject::Port),
    ("request_queue", Subject::Port),
    ("puma_stages", Subject::Port),
    ("puma_futex", Subject::Port),
    ("syscall_latency", Subject::Process),
    ("uring", Subject::Process),
    ("runqlat", Subject::Process),
    ("retrans", Subject::AnyPort),
];

/// Not a script: puma_stages, live, next to Puma's own figures.
const PUMA: &str = "puma";
const STAGES: &str = "puma_stages";

/// They watch one connection in several.
const SAMPLING: &[&str] = &[STAGES, "puma_futex"];

const SECONDS: u64 = 10;
const PUMA_SECONDS: u64 = 60;
/// How long a script may take to print after its time.
const LATE_MAX: Duration = Duration::from_secs(15);

/// What to watch.
#[derive(Args, Default)]
pub(crate) struct Options {
    /// A script of scripts/ without its extension, or `puma`: a line per second on where its requests wait.
    script: String,
    /// The port whose requests or connections to watch [default: the endpoint's, as configured in sluice].
    #[arg(long)]
    port: Option<u16>,
    /// The process to watch [default: sluice].
    #[arg(long)]
    pid: Option<u32>,
    /// The address of sluice's admin listener [default: found among the ports of the process named sluice].
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
    /// Duration [default: 10; puma: 60]; Ctrl-C stops it earlier, and prints the results too.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Watch one connection in this many (puma, puma_stages, puma_futex) [default: 8].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    one_in: Option<u64>,
    /// Puma's control app, as http://127.0.0.1:9293 or unix:///path.
    #[arg(long, value_name = "URL")]
    control: Option<String>,
    /// The control app's token.
    #[arg(long)]
    token: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs a script and shows its counts.
///
/// # Errors
/// When there is no such script or target, bpftrace cannot run here, or it fails.
pub(crate) fn trace(options: &Options) -> Result<()> {
    let name = if options.script == PUMA { STAGES } else { options.script.as_str() };
    let Some((_, subject)) = SCRIPTS.iter().find(|(script, _)| *script == name) else {
        let names: Vec<&str> = SCRIPTS.iter().map(|(script, _)| *script).chain([PUMA]).collect();
        bail!("there is no script {name:?}: choose one of {}", names.join(", "));
    };
    if let Some(reason) = obstacle() {
        bail!(reason);
    }
    let _tracefs = Tracefs::mounted()?;
    let target = target::find(*subject, options)?;
    if options.script == PUMA {
        return puma::watch(&file(name), &target, options);
    }
    let mut args = vec![target.number, options.seconds()];
    args.extend(options.one_in.filter(|_| SAMPLING.contains(&name)));
    let mut session = Session::start(&file(name), &args, OnInterrupt::EndTrace)?;
    session.wait_attached()?;
    options.say(&format!("attached to {} for {} s", target.words, options.seconds()));
    wait(&mut session, Duration::from_secs(options.seconds()) + LATE_MAX)?;
    let report = session.finish()?;
    options.show(name, &target, &report, None);
    Ok(())
}

/// Until the script has ended by itself, the user stops it, or its time is over.
fn wait(session: &mut Session, most: Duration) -> Result<()> {
    match session.next(most)? {
        Event::Said(_) | Event::Quiet => {
            eprintln!("warning: the script did not end in time; ending it");
            Ok(())
        }
        Event::Ended => Ok(()),
    }
}

fn file(script: &str) -> PathBuf {
    workspace::root().join("scripts").join(format!("{script}.bt"))
}

impl Options {
    fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(if self.script == PUMA { PUMA_SECONDS } else { SECONDS })
    }

    /// Only in text mode.
    fn say(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }

    fn show(&self, script: &str, target: &Target, report: &Report, rows: Option<Vec<Value>>) {
        if !self.json {
            print!("\n{}", report.text());
            return;
        }
        let mut object = json!({
            "script": script,
            "target": target.words,
            "seconds": self.seconds(),
            "maps": report.json(),
        });
        if let Some(rows) = rows {
            object["rows"] = Value::Array(rows);
        }
        println!("{object}");
    }
}
