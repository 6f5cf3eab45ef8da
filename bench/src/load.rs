//! The load generators wrk, oha and h2load: how they are called and how their output is read.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sluice_testkit::pinned::PinnedTools;
use sluice_testkit::workspace::{describe, root};

use super::machine::cpus;
use super::scenario::Generator;
use super::server::session;

/// oha's name for requests in progress at the end.
const CUT_OFF: &str = "aborted due to deadline";

/// The result of a run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// Requests that got a response.
    pub(super) requests: f64,
    /// Duration of the run.
    pub(super) seconds: f64,
    /// Requests without a response, or with one that is neither 2xx nor 3xx.
    pub(super) errors: f64,
    /// Requests in progress at the end, if the program reports them.
    pub(super) cut_off: Option<f64>,
    /// Percentile and microseconds, ascending.
    pub(super) latency_us: Vec<(f64, f64)>,
}

impl Outcome {
    /// The latency at a percentile.
    pub(super) fn at(&self, percent: f64) -> Option<f64> {
        self.latency_us.iter().find(|(known, _)| (known - percent).abs() < 1e-6).map(|(_, us)| *us)
    }
}

/// One run against a URL.
pub(super) struct Run<'a> {
    /// The program.
    pub(super) generator: Generator,
    /// Number of connections.
    pub(super) connections: usize,
    /// Whether connections are reused.
    pub(super) keep_alive: bool,
    /// Requests per second at fixed times; `None` sends one after the other.
    pub(super) rate: Option<f64>,
    /// Duration.
    pub(super) seconds: u64,
    /// The URL to request.
    pub(super) url: &'a str,
}

impl Generator {
    /// Number of cores that it can use.
    pub(super) fn cores(self) -> usize {
        match self {
            Self::Wrk { threads } => threads.min(cpus()),
            Self::Oha => cpus(),
            Self::H2load { .. } => 1,
        }
    }

    /// The name of the tool.
    pub(super) fn tool(self) -> &'static str {
        match self {
            Self::Wrk { .. } => "wrk",
            Self::Oha => "oha",
            Self::H2load { .. } => "h2load",
        }
    }
}

impl Run<'_> {
    /// Runs it in a new session.
    ///
    /// # Errors
    /// The program fails, or its output is not as expected.
    pub(super) fn measure(&self, tools: &PinnedTools) -> Result<Outcome> {
        let mut command = match self.generator {
            Generator::Wrk { threads } => self.wrk(threads, tools)?,
            Generator::Oha => self.oha(tools)?,
            Generator::H2load { streams } => self.h2load(streams, tools)?,
        };
        let words = describe(&command);
        let output = command.output().with_context(|| words.clone())?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr).trim());
        match self.generator {
            Generator::Wrk { .. } => parse_wrk(&text),
            Generator::Oha => parse_oha(&text),
            Generator::H2load { .. } => parse_h2load(&text),
        }
        .with_context(|| format!("{words} printed: {text}"))
    }

    fn wrk(&self, threads: usize, tools: &PinnedTools) -> Result<Command> {
        let mut command = session(tools.path("wrk")?);
        command
            .args([format!("-t{threads}"), format!("-c{}", self.connections), format!("-d{}s", self.seconds)])
            .args(["--latency", "--timeout", "30s", "-s"])
            .arg(root().join("bench/wrk/done.lua"));
        if !self.keep_alive {
            command.args(["-H", "Connection: close"]);
        }
        command.arg(self.url);
        Ok(command)
    }

    fn h2load(&self, streams: usize, tools: &PinnedTools) -> Result<Command> {
        let mut command = session(tools.path("h2load")?);
        command
            .args(["-t1", "-c", &self.connections.to_string(), "-m", &streams.to_string()])
            .args(["-D", &self.seconds.to_string()])
            .arg(self.url);
        Ok(command)
    }

    fn oha(&self, tools: &PinnedTools) -> Result<Command> {
        let mut command = session(tools.path("oha")?);
        command
            .args(["--no-tui", "--output-format", "json"])
            // Do not wait for requests in progress at the end (-w): once the load is gone, a server may take longest of
            // all. Each of Puma's threads waits 0.2 s for more on a connection that a proxy keeps open.
            .args(["-z", &format!("{}s", self.seconds), "-t", "30s"])
            .args(["-c", &self.connections.to_string()]);
        if let Some(rate) = self.rate {
            // Count the time that a request waits for its turn as well. Otherwise a stall would count once instead of
            // for all requests that were due meanwhile.
            command.args(["-q", &format!("{rate:.0}"), "--latency-correction"]);
        }
        // The certificate is self-signed.
        command.arg("--insecure");
        if !self.keep_alive {
            command.arg("--disable-keepalive");
        }
        command.arg(self.url);
        Ok(command)
    }
}

/// Reads the summary lines of h2load, which prints no percentiles.
fn parse_h2load(text: &str) -> Result<Outcome> {
    let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).context(start.to_owned());
    let finished = line("finished in ")?.split_once("s,").context("no seconds")?.0;
    let counts = line("requests: ")?;
    let count = |word: &str| -> Result<f64> {
        let part = counts.split(", ").find_map(|part| part.strip_suffix(word)).context(word.to_owned())?;
        Ok(part.trim().parse()?)
    };
    Ok(Outcome {
        requests: count("succeeded")?,
        seconds: finished.trim().parse()?,
        errors: count("failed")?,
        cut_off: None,
        latency_us: Vec::new(),
    })
}

/// Reads the line that `bench/wrk/done.lua` prints.
fn parse_wrk(text: &str) -> Result<Outcome> {
    let line = text.lines().find_map(|line| line.strip_prefix("summary ")).context("no summary")?;
    let said: Value = serde_json::from_str(line)?;
    let number = |name: &str| said[name].as_f64().with_context(|| format!("no {name}"));
    let curve = said["latency_us"].as_array().context("no latency_us")?;
    Ok(Outcome {
        requests: number("requests")?,
        seconds: number("duration_us")? / 1e6,
        errors: number("failed")? + number("bad_status")?,
        cut_off: None,
        latency_us: curve.iter().filter_map(|point| Some((point[0].as_f64()?, point[1].as_f64()?))).collect(),
    })
}

/// Reads oha's JSON; times are in seconds.
fn parse_oha(text: &str) -> Result<Outcome> {
    let said: Value = serde_json::from_str(text)?;
    let counts = |name: &str| -> Vec<(String, f64)> {
        let entries = said[name].as_object().into_iter().flatten();
        entries.filter_map(|(key, count)| Some((key.clone(), count.as_f64()?))).collect()
    };
    let statuses = counts("statusCodeDistribution");
    let good = |status: &str| status.starts_with('2') || status.starts_with('3');
    let bad = statuses.iter().filter(|(status, _)| !good(status)).map(|(_, count)| count).sum::<f64>() + 0.0;
    let (cut_off, failed): (Vec<_>, Vec<_>) =
        counts("errorDistribution").into_iter().partition(|(error, _)| error == CUT_OFF);
    // The sum of an empty iterator is a negative zero.
    let sum = |counts: &[(String, f64)]| counts.iter().map(|(_, count)| count).sum::<f64>() + 0.0;
    let mut latency_us: Vec<(f64, f64)> = counts("latencyPercentiles")
        .iter()
        .filter_map(|(name, seconds)| Some((name.strip_prefix('p')?.parse().ok()?, seconds * 1e6)))
        .collect();
    latency_us.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(Outcome {
        requests: sum(&statuses),
        seconds: said["summary"]["total"].as_f64().context("no summary.total")?,
        errors: bad + sum(&failed),
        cut_off: Some(sum(&cut_off)),
        latency_us,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn wrk_output_is_parsed() {
        let text = "Running 1s test\n  50.00%  1.00ms\nsummary {\"requests\":200,\"duration_us\":2000000,\
                    \"failed\":1,\"bad_status\":2,\"latency_us\":[[50,100],[99.9,900]]}\n";
        let outcome = parse_wrk(text).unwrap();
        assert_eq!((outcome.requests, outcome.seconds, outcome.errors), (200.0, 2.0, 3.0));
        assert_eq!(outcome.at(99.9), Some(900.0));
        assert_eq!(outcome.at(90.0), None);
        assert!(parse_wrk("Running 1s test").is_err());
    }

    #[test]
    fn h2load_output_is_parsed() {
        let text = "starting benchmark...\n\nfinished in 3.02s, 5000.00 req/s, 1.20MB/s\n\
                    requests: 15100 total, 15103 started, 15100 done, 15098 succeeded, 2 failed, 1 errored, 0 timeout\n";
        let outcome = parse_h2load(text).unwrap();
        assert_eq!((outcome.requests, outcome.seconds, outcome.errors), (15_098.0, 3.02, 2.0));
        assert!(parse_h2load("h2load: no").is_err());
    }

    #[test]
    fn oha_output_is_parsed_and_other_statuses_are_errors() {
        let text = r#"{"summary":{"total":2.0},"statusCodeDistribution":{"200":90,"503":5},
            "errorDistribution":{"connection refused":3,"aborted due to deadline":7},
            "latencyPercentiles":{"p50":0.001,"p99.9":0.5,"p10":0.0005,"p99":null}}"#;
        let outcome = parse_oha(text).unwrap();
        assert_eq!((outcome.requests, outcome.seconds, outcome.errors), (95.0, 2.0, 8.0));
        assert_eq!(outcome.cut_off, Some(7.0));
        assert_eq!(outcome.latency_us, [(10.0, 500.0), (50.0, 1000.0), (99.9, 500_000.0)]);
    }
}
