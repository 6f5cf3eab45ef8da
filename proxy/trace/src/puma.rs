//! `sluice trace puma`: one line per second, the kernel's view of a Puma next to Puma's own.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use super::report::{Histogram, Report, time};
use super::session::{Event, OnInterrupt, Session};
use super::target::Target;
use super::{Options, advice, http, sockets};

/// Printed by the script when it has printed its maps.
const SECOND: &str = "second";
/// The script prints something every second; after this much silence it is stuck.
const SILENCE_MAX: Duration = Duration::from_secs(20);
const STAGES: [&str; 4] = ["accept_wait_us", "request_queue_us", "service_us", "handed_over_us"];
/// The meaning of the columns.
const LEGEND: &str = "\n\
  requests watched   responses seen in this second, of one connection in so many\n\
  accept wait        from the handshake until Puma accepts: it accepts nothing while all threads are busy\n\
  to read            from the first byte until Puma reads it\n\
  service            from that read until the first byte of the response, by the same thread\n\
  handed over        the same if another thread responds; includes the wait for a thread\n\
  asleep             share of the service time in which the thread slept: lock, database, other services\n\
  accept queue       connections waiting to be accepted: now, and the maximum so far\n\
  backlog, free      Puma's own figures (--control): requests that wait for a thread, and threads that are free\n";

/// Figures of Puma's control app.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stats {
    /// Requests read but not yet taken by a thread.
    backlog: u64,
    /// Requests that could be taken at once.
    pool_capacity: u64,
}

/// One second.
struct Row {
    second: u64,
    stages: [Histogram; 4],
    /// Percentage of the service time.
    asleep: Option<u64>,
    depth_now: Option<u64>,
    depth_max: i64,
    stats: Option<Stats>,
}

/// Watches until the time is over or Ctrl-C; prints a line per second, then the totals.
///
/// # Errors
/// When bpftrace fails, or the configured control app does not respond at first.
pub(super) fn watch(script: &str, target: &Target, options: &Options) -> Result<()> {
    // A wrong token is reported before anything is attached.
    stats(options)?;
    let args = [target.number, options.seconds(), options.one_in.unwrap_or(0), 1];
    let mut session = Session::start(script, &args, OnInterrupt::EndTrace)?;
    session.wait_attached()?;
    options.say(&format!("attached to {} for {} s", target.words, options.seconds()));
    options.say(LEGEND);
    options.say(&head());
    let mut before = Report::default();
    let mut rows = Vec::new();
    loop {
        match session.next(SILENCE_MAX)? {
            Event::Said(text) if text.starts_with(SECOND) => {
                let row = row(rows.len() as u64 + 1, session.report(), &before, target, options);
                options.say(&row.text());
                rows.push(row.json());
                before = session.report().clone();
            }
            Event::Said(_) => {}
            Event::Quiet => bail!("no output of bpftrace for {} s", SILENCE_MAX.as_secs()),
            Event::Ended => break,
        }
    }
    let report = session.finish()?;
    options.show("puma", target, &report, Some(rows));
    options.say("");
    advice::advice(&report).iter().for_each(|line| options.say(line));
    Ok(())
}

fn row(second: u64, now: &Report, before: &Report, target: &Target, options: &Options) -> Row {
    let stages = STAGES.map(|name| now.histogram(name).since(&before.histogram(name)));
    let spent = |name: &str| u64::try_from(now.value(name) - before.value(name)).unwrap_or(0);
    let port = u16::try_from(target.number).unwrap_or(0);
    Row {
        second,
        stages,
        asleep: (spent("service_asleep_us") * 100).checked_div(spent("service_total_us")),
        depth_now: sockets::depth(port).ok(),
        depth_max: now.value("accept_depth_max"),
        stats: stats(options).ok().flatten(),
    }
}

/// Puma's own figures, summed over the workers of a cluster; none without a control app.
fn stats(options: &Options) -> Result<Option<Stats>> {
    let Some(control) = &options.control else { return Ok(None) };
    let query = options.token.as_ref().map(|token| format!("?token={token}")).unwrap_or_default();
    Ok(Some(read_stats(&http::get(control, &format!("/stats{query}"))?)))
}

fn read_stats(answer: &Value) -> Stats {
    let workers: Vec<&Value> = match answer["worker_status"].as_array() {
        Some(workers) => workers.iter().map(|worker| &worker["last_status"]).collect(),
        None => vec![answer],
    };
    let sum = |name: &str| workers.iter().filter_map(|worker| worker[name].as_u64()).sum();
    Stats { backlog: sum("backlog"), pool_capacity: sum("pool_capacity") }
}

impl Row {
    fn requests(&self) -> u64 {
        self.stages[2].count() + self.stages[3].count()
    }

    fn text(&self) -> String {
        let mut line = format!("{:>7} {:>8}", self.second, self.requests());
        for stage in &self.stages {
            let at = |percent| stage.percentile(percent).map_or("-".to_owned(), millis);
            line.push_str(&format!("   {:>6} {:>6}", at(50), at(99)));
        }
        let or_dash = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
        let asleep = self.asleep.map_or("-".to_owned(), |share| format!("{share} %"));
        line.push_str(&format!("  {asleep:>6}  {:>5} {:>6}", or_dash(self.depth_now), self.depth_max));
        let backlog = or_dash(self.stats.map(|stats| stats.backlog));
        let free = or_dash(self.stats.map(|stats| stats.pool_capacity));
        line.push_str(&format!("  {backlog:>7} {free:>7}"));
        line
    }

    fn json(&self) -> Value {
        let mut row = Map::new();
        row.insert("second".into(), self.second.into());
        row.insert("requests_watched".into(), self.requests().into());
        for (name, stage) in STAGES.iter().zip(&self.stages) {
            row.insert((*name).into(), json!({"p50": stage.percentile(50), "p99": stage.percentile(99)}));
        }
        row.insert("asleep_percent".into(), json!(self.asleep));
        row.insert("accept_queue".into(), json!(self.depth_now));
        row.insert("accept_queue_max".into(), json!(self.depth_max));
        row.insert("backlog".into(), json!(self.stats.map(|stats| stats.backlog)));
        row.insert("pool_capacity".into(), json!(self.stats.map(|stats| stats.pool_capacity)));
        Value::Object(row)
    }
}

/// Two lines, in the widths of a row.
fn head() -> String {
    let [accept, queue, service, handed] =
        ["accept wait ms", "to read ms", "service ms", "handed over ms"].map(|name| format!("{name:>16}"));
    let stage = format!("   {:>6} {:>6}", "p50", "p99").repeat(STAGES.len());
    format!(
        "{:>7} {:>8}{accept}{queue}{service}{handed}  {:>6}  {:>12}  {:>7} {:>7}\n\
         {:>7} {:>8}{stage}  {:>6}  {:>5} {:>6}  {:>7} {:>7}",
        "s",
        "requests",
        "asleep",
        "accept queue",
        "backlog",
        "free",
        "",
        "watched",
        "",
        "now",
        "max",
        "",
        "threads"
    )
}

/// Microseconds in the column's unit.
fn millis(us: u64) -> String {
    match us {
        0..1_024 => format!("{:.2}", us as f64 / 1_024.0),
        _ => time(us).trim_end_matches(" ms").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_of_a_cluster_are_summed() {
        let single = json!({"backlog": 1, "running": 4, "pool_capacity": 3});
        assert_eq!(read_stats(&single), Stats { backlog: 1, pool_capacity: 3 });
        let cluster =
            json!({"workers": 2, "worker_status": [{"last_status": single}, {"last_status": single}]});
        assert_eq!(read_stats(&cluster), Stats { backlog: 2, pool_capacity: 6 });
    }

    #[test]
    fn rows_align_with_the_head_and_show_unknown_values() {
        let slow = Histogram { buckets: vec![(128, 256, 9), (32_768, 65_536, 1)] };
        let none = Histogram::default;
        let row = Row {
            second: 12,
            stages: [none(), none(), slow, none()],
            asleep: Some(95),
            depth_now: Some(28),
            depth_max: 30,
            stats: None,
        };
        let text = row.text();
        let words: Vec<&str> = text.split_whitespace().collect();
        let wanted = "12 10 - - - - 0.25 64 - - 95 % 28 30 - -";
        assert_eq!(words.join(" "), wanted);
        assert!(head().lines().all(|line| line.len() == text.len()), "{}\n{text}", head());
    }
}
