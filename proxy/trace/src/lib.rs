//! `sluice trace`: the scripts in `scripts/`, targeted, attached, stopped, shown and explained. Counts nothing itself.

mod advice;
mod http;
mod names;
pub mod program;
mod puma;
pub mod report;
pub mod session;
pub mod sockets;
mod target;
pub mod tracefs;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use report::Report;
use serde_json::{Value, json};
use session::{Event, OnInterrupt, Session, obstacle};
use target::{Subject, Target};
use tracefs::Tracefs;

/// A script: its name, its text, and the meaning of its first argument.
struct Script {
    name: &'static str,
    text: &'static str,
    subject: Subject,
}

macro_rules! scripts {
    ($($name:literal: $subject:ident,)*) => {
        &[$(Script {
            name: $name,
            text: include_str!(concat!("../../../scripts/", $name, ".bt")),
            subject: Subject::$subject,
        },)*]
    };
}

const SCRIPTS: &[Script] = scripts! {
    "accept_queue": Port,
    "request_queue": Port,
    "puma_stages": Port,
    "puma_futex": Port,
    "syscall_latency": Process,
    "uring": Process,
    "runqlat": Process,
    "retrans": AnyPort,
};

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
#[derive(Clone, Debug, Args, Default)]
pub struct Options {
    /// accept_queue, request_queue, puma_stages, puma_futex, syscall_latency, uring, runqlat or retrans; or puma: a
    /// line per second on where its requests wait, and advice
    script: String,
    /// The port whose requests or connections to watch [default: the endpoint's, as configured in sluice]
    #[arg(long)]
    port: Option<u16>,
    /// The process to watch [default: sluice]
    #[arg(long)]
    pid: Option<u32>,
    /// The address of sluice's admin listener [default: found among the ports of the process named sluice]
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
    /// Duration [default: 10; puma: 60]; Ctrl-C stops it earlier, and prints the results too
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Watch one connection in this many (puma, puma_stages, puma_futex) [default: 8]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    one_in: Option<u64>,
    /// Puma's control app, as http://127.0.0.1:9293 or unix:///path
    #[arg(long, value_name = "URL")]
    control: Option<String>,
    /// The control app's token
    #[arg(long)]
    token: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Runs a script and shows its counts.
///
/// # Errors
/// When there is no such script or target, bpftrace cannot run here, or it fails.
pub fn trace(options: &Options) -> Result<()> {
    let name = if options.script == PUMA { STAGES } else { options.script.as_str() };
    let Some(script) = SCRIPTS.iter().find(|script| script.name == name) else {
        let names: Vec<&str> = SCRIPTS.iter().map(|script| script.name).chain([PUMA]).collect();
        bail!("there is no script {name:?}: choose one of {}", names.join(", "));
    };
    if let Some(reason) = obstacle() {
        bail!(reason);
    }
    let _tracefs = Tracefs::mounted()?;
    let target = target::find(script.subject, options)?;
    if options.script == PUMA {
        return puma::watch(script.text, &target, options);
    }
    let mut args = vec![target.number, options.seconds()];
    args.extend(options.one_in.filter(|_| SAMPLING.contains(&name)));
    let mut session = Session::start(&names::native(script.text), &args, OnInterrupt::EndTrace)?;
    session.wait_attached()?;
    options.say(&format!(
        "attached to {} for {} s\n\n{}",
        target.words,
        options.seconds(),
        legend(script.text)
    ));
    wait(&mut session, Duration::from_secs(options.seconds()) + LATE_MAX)?;
    let report = session.finish()?;
    options.show(name, &target, &report, None);
    if name == STAGES {
        options.say("");
        advice::advice(&report).iter().for_each(|line| options.say(line));
    }
    Ok(())
}

/// The text of a script by its name.
///
/// # Errors
/// When there is none.
pub fn script(name: &str) -> Result<&'static str> {
    let found = SCRIPTS.iter().find(|script| script.name == name).map(|script| script.text);
    found.with_context(|| format!("there is no script {name:?}"))
}

/// What the names in the results mean: the lines on them in the head of the script.
fn legend(script: &str) -> String {
    let head = script.lines().take_while(|line| line.starts_with("//"));
    let text = head.map(|line| line.trim_start_matches('/').strip_prefix(' ').unwrap_or_default());
    let meanings =
        text.skip_while(|line| !line.starts_with("  @")).take_while(|line| !line.trim().is_empty());
    meanings.map(|line| format!("{}\n", line.replacen("  @", "  ", 1).replace(" @", " "))).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_explains_its_results() {
        for script in SCRIPTS {
            let legend = legend(script.text);
            assert!(legend.lines().count() > 1, "{}: {legend}", script.name);
        }
        let uring = SCRIPTS.iter().find(|script| script.name == "uring").expect("it is listed");
        assert!(
            legend(uring.text).starts_with("  complete_us[opcode]   from submission"),
            "{}",
            legend(uring.text)
        );
    }
}
