//! The kernel tier of `cargo xtask test`: every script on real servers, with counts compared to what was sent.

mod load;
mod scene;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use scene::{CROWD, KEPT, NEW, RESETS, SLOW, Scene, TOKEN, Watched};
use serde_json::Value;
use sluice_testkit::packages::Tools;
use sluice_testkit::tally::Tally;
use sluice_trace::report::Histogram;
use sluice_trace::session::obstacle;
use sluice_trace::tracefs::Tracefs;

/// A check and its name.
type Check<T> = (&'static str, fn(&T) -> Result<String>);

const CHECKS: &[Check<Watched>] = &[
    ("trace::accept_queue", accept_queue),
    ("trace::request_queue", request_queue),
    ("trace::puma_stages", puma_stages),
    ("trace::puma_futex", puma_futex),
    ("trace::syscall_latency", syscall_latency),
    ("trace::uring", uring),
    ("trace::runqlat", runqlat),
    ("trace::retrans", retrans),
    ("trace::a_slow_app_is_service", slow_app),
    ("trace::a_crowd_is_accept_wait", crowd),
];
/// These run `sluice trace` itself.
const COMMANDS: &[Check<Scene>] =
    &[("trace::command_finds_the_port", finds_the_port), ("trace::command_shows_puma_live", shows_puma_live)];

const PROGRAMS: &[&str] = &["bpftrace", "puma", "rack", "ruby"];
/// Maximum number of times the scene is watched, about 15 s each. A kernel refuses a map update by a program that
/// interrupts another one on the same CPU, and a paused machine distorts durations; a script that counts wrongly does
/// so every time.
const WATCHES: usize = 3;
/// A bucket boundary below the 400 ms that the app waits; twice that is as far above it, so that a machine that pauses
/// for 100 ms moves nothing across either.
const SLOW_US: u64 = 262_144;

/// The names of all checks.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|check| check.0).chain(COMMANDS.iter().map(|check| check.0))
}

/// Runs every requested check, or says why not. The binary is built only if it is needed.
///
/// # Errors
/// When the binary is not available. Failed checks are counted, not errors.
pub(crate) fn run(binary: impl FnOnce() -> Result<PathBuf>, tally: &mut Tally) -> Result<()> {
    let wanted = names().filter(|name| tally.wants(name)).count();
    if wanted == 0 {
        return Ok(());
    }
    // As root, a missing bpftrace is installed here.
    let lack = Tools::prepare().lack(PROGRAMS);
    if let Some(reason) = obstacle().map(str::to_owned).or(lack) {
        tally.skip("trace", wanted, &reason);
        return Ok(());
    }
    let binary = binary()?;
    let tracefs = Tracefs::mounted();
    let watched = tracefs.and_then(|tracefs| {
        let scene = Scene::start(&binary)?;
        Ok((watch(&scene)?, scene, tracefs))
    });
    match watched {
        Ok((watches, scene, _tracefs)) => {
            for (name, check) in CHECKS {
                tally.check(name, || once(*check, &watches));
            }
            for (name, check) in COMMANDS {
                tally.check(name, || check(&scene));
            }
        }
        Err(error) => {
            println!("{error:#}");
            for name in names() {
                tally.check(name, || Err(anyhow!("the servers were not watched, see above")));
            }
        }
    }
    Ok(())
}

/// Watches the scene, and again while a check has failed each time.
fn watch(scene: &Scene) -> Result<Vec<Watched>> {
    let mut watches = vec![scene.watch()?];
    while watches.len() < WATCHES
        && let Some((name, error)) =
            CHECKS.iter().find_map(|(name, check)| Some((name, once(*check, &watches).err()?)))
    {
        println!("{name}: {error:#}; watching again");
        watches.push(scene.watch()?);
    }
    Ok(watches)
}

/// The result of a check for the first watch that passes, or the last one.
fn once(check: fn(&Watched) -> Result<String>, watches: &[Watched]) -> Result<String> {
    let mut said = Err(anyhow!("never watched"));
    for watched in watches {
        said = check(watched);
        if said.is_ok() {
            break;
        }
    }
    said
}

/// Within 2 % of the expected value, or off by one if that is more.
fn near(what: &str, counted: u64, sent: u64) -> Result<String> {
    let off = counted.abs_diff(sent);
    ensure!(off * 50 <= sent.max(50), "{what}: counted {counted}, expected {sent}");
    Ok(format!("{what}: {counted} of {sent}"))
}

fn positive(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Connections from sluice to Puma, which the kernel counts at the other end.
fn connects(watched: &Watched) -> Result<u64> {
    Ok(watched.report("uring")?.keyed("complete_us", "16").count())
}

fn accept_queue(watched: &Watched) -> Result<String> {
    let report = watched.report("accept_queue")?;
    let made = NEW.requests() + RESETS as u64 + connects(watched)?;
    near("joined", positive(report.value("joined")), made)?;
    near("depths", report.histogram("accept_depth").count(), made)?;
    ensure!(report.value("accept_limit") > 0, "no limit of the queue");
    ensure!(report.value("died_waiting") == 0, "connections were closed while waiting");
    let full = watched.report("full_queue")?;
    near("died waiting", positive(full.value("died_waiting")), watched.never_accepted)?;
    near("waits", report.histogram("accept_wait_us").count(), made)?;
    // sluice accepts on its rings, on one socket per worker.
    let accepted = watched.report("sluice")?.histogram("accept_wait_us").count();
    near("waits for sluice", accepted, KEPT.clients as u64)?;
    near("accepted", positive(report.value("accepted")), made)
}

/// All requests to Puma on the port that most scripts watch.
fn requests() -> u64 {
    NEW.requests() + KEPT.requests() + RESETS as u64
}

fn request_queue(watched: &Watched) -> Result<String> {
    let report = watched.report("request_queue")?;
    near("answers", report.histogram("service_us").count(), requests())?;
    near("requests", report.histogram("request_queue_us").count(), requests())
}

fn puma_stages(watched: &Watched) -> Result<String> {
    let report = watched.report("puma_stages")?;
    let made = NEW.requests() + RESETS as u64 + connects(watched)?;
    near("accepts", report.histogram("accept_wait_us").count(), made)?;
    near("connections", positive(report.value("connections")), made)?;
    near("requests", report.histogram("request_queue_us").count(), requests())?;
    let answers = report.histogram("service_us").count() + report.histogram("handed_over_us").count();
    near("answers", answers, requests())
}

/// Ruby sleeps on a futex, except for one thread at a time that sleeps in ppoll, to notice signals: a quarter of four
/// threads.
fn puma_futex(watched: &Watched) -> Result<String> {
    let report = watched.report("slow_futex")?;
    let (asleep, total) = (report.value("service_futex_us"), report.value("service_total_us"));
    nearly_all("asleep on a futex", positive(asleep), positive(total), 50)?;
    let asked = SLOW.requests() - handed_over(watched, "slow")?;
    near("requests", positive(report.value("requests")), asked)
}

/// Requests that had not arrived when Puma looked: its reactor read them, and another thread responded.
fn handed_over(watched: &Watched, name: &str) -> Result<u64> {
    Ok(watched.report(name)?.histogram("handed_over_us").count())
}

fn syscall_latency(watched: &Watched) -> Result<String> {
    let report = watched.report("syscall_latency")?;
    let calls = positive(report.value("calls"));
    let timed = report.histogram("work_us").count() + report.histogram("waiting_us").count();
    near("calls timed", timed, calls)?;
    // Puma reads the bytes of a request once, when they have arrived, and once more to notice a reset.
    near("recvfrom", positive(report.value_of("calls", "45")), requests() + RESETS as u64)
}

fn uring(watched: &Watched) -> Result<String> {
    let report = watched.report("uring")?;
    ensure!(report.value("overflows") == 0, "completions overflowed");
    ensure!(report.histogram("entries_per_enter").count() > 0, "no io_uring_enter");
    // One to the origin and one to the client.
    near("sends", report.keyed("complete_us", "26").count(), 2 * KEPT.requests())
}

fn runqlat(watched: &Watched) -> Result<String> {
    let report = watched.report("runqlat")?;
    let runs = positive(report.value("runs"));
    near("waits", report.histogram("runq_wait_us").count(), runs)?;
    near("runs", runs, watched.switches)
}

fn retrans(watched: &Watched) -> Result<String> {
    let report = watched.report("retrans")?;
    ensure!(report.value("syns_retransmitted") == 0, "a SYN was retransmitted on loopback");
    let full = watched.report("full")?.value("syns_retransmitted");
    ensure!(full > 0, "no SYN was retransmitted to the full queue");
    near("resets", positive(report.value("resets_received")), RESETS as u64)
}

/// Nearly all: the machine may pause sometimes.
fn nearly_all(what: &str, part: u64, of: u64, least_percent: u64) -> Result<()> {
    ensure!(of > 0, "{what}: no samples");
    ensure!(part * 100 >= of * least_percent, "{what}: {part} of {of}");
    Ok(())
}

fn under_slow(what: &str, waits: &Histogram) -> Result<()> {
    nearly_all(what, waits.count() - waits.from(SLOW_US), waits.count(), 90)
}

/// 400 ms in the app, with a thread for every client: it is service time, asleep, and nothing else.
fn slow_app(watched: &Watched) -> Result<String> {
    let report = watched.report("slow")?;
    let service = report.histogram("service_us");
    near("answers", service.count() + handed_over(watched, "slow")?, SLOW.requests())?;
    nearly_all("slow responses", service.from(SLOW_US), service.count(), 95)?;
    under_slow("quick accepts", &report.histogram("accept_wait_us"))?;
    under_slow("quick reads", &report.histogram("request_queue_us"))?;
    let (asleep, total) = (report.value("service_asleep_us"), report.value("service_total_us"));
    nearly_all("asleep", positive(asleep), positive(total), 80)?;
    Ok(format!("{} of {} slow", service.from(SLOW_US), service.count()))
}

/// Eight such requests on four threads: half of them wait for accept, and no other stage gets longer.
fn crowd(watched: &Watched) -> Result<String> {
    let report = watched.report("crowded")?;
    let waits = report.histogram("accept_wait_us");
    near("accepts", waits.count(), CROWD.requests())?;
    let long = waits.from(SLOW_US);
    nearly_all("long accept waits", 2 * long, waits.count(), 80)?;
    nearly_all("short accept waits", 2 * (waits.count() - long), waits.count(), 80)?;
    under_slow("quick reads", &report.histogram("request_queue_us"))?;
    let service = report.histogram("service_us");
    near("answers", service.count() + handed_over(watched, "crowded")?, CROWD.requests())?;
    // Not twice the delay, as if they had waited in there.
    let twice = service.from(2 * SLOW_US);
    nearly_all("responses no slower than the app", service.count() - twice, service.count(), 90)?;
    Ok(format!("{long} of {} waited for accept", waits.count()))
}

/// With only sluice's admin address it watches the endpoint's port.
fn finds_the_port(scene: &Scene) -> Result<String> {
    let admin = scene.admin.to_string();
    let answer = under_load(scene, &["accept_queue", "--admin", &admin, "--seconds", "2"])?;
    let port = scene.puma.address.port().to_string();
    let accepted = answer["maps"]["accepted"][&port].as_u64().unwrap_or(0);
    ensure!(accepted > 0, "nothing accepted on port {port}: {answer}");
    Ok(format!("{accepted} accepted"))
}

/// The table has a row per second (fewer if the machine pauses), including Puma's own figures.
fn shows_puma_live(scene: &Scene) -> Result<String> {
    let (port, control) = (scene.puma.address.port().to_string(), format!("http://{}", scene.puma.control));
    let args = ["puma", "--port", &port, "--seconds", "3", "--one-in", "1", "--control", &control];
    let answer = under_load(scene, &[&args[..], &["--token", TOKEN]].concat())?;
    let rows = answer["rows"].as_array().context("no rows")?;
    ensure!((1..=3).contains(&rows.len()), "{} rows: {answer}", rows.len());
    ensure!(rows.iter().all(|row| row["pool_capacity"].is_u64() && row["accept_queue"].is_u64()), "{answer}");
    let seen: u64 = rows.iter().filter_map(|row| row["requests_watched"].as_u64()).sum();
    ensure!(seen > 0, "no request was seen: {answer}");
    Ok(format!("{seen} requests in {} rows", rows.len()))
}

/// The output of `sluice trace ARGS --json` while requests are sent.
fn under_load(scene: &Scene, args: &[&str]) -> Result<Value> {
    let mut command = Command::new(&scene.binary);
    command.arg("trace").args(args).arg("--json").stdin(Stdio::null());
    let over = AtomicBool::new(false);
    let output = thread::scope(|scope| {
        let load = scope.spawn(|| -> Result<()> {
            while !over.load(Ordering::Relaxed) {
                load::new_connections(scene.puma.address, "/", 2, 5)?;
            }
            Ok(())
        });
        let output = command.output();
        over.store(true, Ordering::Relaxed);
        load.join().map_err(|_| anyhow!("panicked"))??;
        Ok::<_, anyhow::Error>(output?)
    })?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("not one JSON object")
}
