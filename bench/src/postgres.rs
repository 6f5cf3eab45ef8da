//! PostgreSQL as an origin, pgbench as its load, and the server's view of its connections.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::unistd::{User, geteuid};
use sluice_testkit::process::bound;
use sluice_testkit::workspace::describe;

use super::load::Outcome;
use super::machine::cpus;
use super::server::{Server, session};
use super::stats::percentile;

const POLL: Duration = Duration::from_millis(50);
const READY_TRIES: u32 = 200;
const ROLE: &str = "bench";
const OWNER: &str = "postgres";
const POINTS: &[f64] = &[1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];
const CONNECTIONS: &str = "select count(*) from pg_stat_activity \
                           where backend_type = 'client backend' and pid <> pg_backend_pid()";

/// Starts a server with a pgbench database, in a folder that is removed with it.
///
/// PostgreSQL refuses to run as root; then the user `postgres` creates and runs it.
///
/// # Errors
/// A step fails.
pub(super) fn start(address: SocketAddr, programs: &Path, log: PathBuf) -> Result<Server> {
    let owner = if geteuid().is_root() {
        Some(
            User::from_name(OWNER)?
                .context("user `postgres` is missing, and PostgreSQL refuses to run as root")?,
        )
    } else {
        None
    };
    let folder = std::env::temp_dir().join(format!("sluice-bench-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
    if let Some(owner) = &owner {
        chown(&folder, Some(owner.uid.as_raw()), Some(owner.gid.as_raw()))?;
    }
    let data = folder.join("data");
    let mut initdb = owned(&bound(programs.join("initdb")), owner.is_some());
    initdb.arg("-D").arg(&data).args(["-U", ROLE, "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"]);
    quiet(initdb.current_dir(&folder))?;

    let mut command = owned(&session(programs.join("postgres")), owner.is_some());
    command.arg("-D").arg(&data).args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()]);
    // No unix socket and no disk writes: only connections and selects are measured.
    command.args(["-k", "", "-c", "fsync=off", "-c", "max_connections=100"]).current_dir(&folder);
    // SIGINT shuts down at once; the default signal waits for clients to disconnect.
    let server = Server::start_ended_by(Signal::SIGINT, "postgres", &mut command, log, address)?;
    let server = server.with_folder(folder);
    for _ in 0..READY_TRIES {
        if ask(address, programs, "select 1").is_ok() {
            let mut fill = client(&programs.join("pgbench"), address);
            quiet(fill.args(["--initialize", "--quiet", "--scale=1", OWNER]))?;
            return Ok(server);
        }
        thread::sleep(POLL);
    }
    bail!("postgres does not respond\n{}", server.tail())
}

/// The result of a query.
///
/// # Errors
/// The query fails.
pub(super) fn ask(address: SocketAddr, programs: &Path, query: &str) -> Result<String> {
    let output =
        client(&programs.join("psql"), address).args(["-X", "-A", "-t", "-c", query, OWNER]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs pgbench against `address`. Also returns the maximum number of connections seen at the server, `origin`.
///
/// # Errors
/// pgbench fails.
pub(super) fn measure(
    (address, origin): (SocketAddr, SocketAddr),
    programs: &Path,
    clients: usize,
    seconds: u64,
    folder: &Path,
) -> Result<(Outcome, f64)> {
    let prefix = folder.join("pgbench_log");
    let mut command = client(&session(programs.join("pgbench")), address);
    command
        .args(["--no-vacuum", "--select-only", "--log", "--log-prefix"])
        .arg(&prefix)
        .args([format!("--client={clients}"), format!("--jobs={}", cpus()), format!("--time={seconds}")])
        .arg(OWNER)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().context("pgbench")?;
    let mut seen = 0.0_f64;
    while seen < clients as f64 && child.try_wait()?.is_none() {
        let count = ask(origin, programs, CONNECTIONS)?;
        seen = seen.max(count.parse().unwrap_or(0.0));
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "pgbench: {}", String::from_utf8_lossy(&output.stderr).trim());
    let mut latencies = latencies(folder)?;
    latencies.sort_by(f64::total_cmp);
    let mut outcome = parse(&text).with_context(|| format!("pgbench printed: {text}"))?;
    outcome.latency_us =
        POINTS.iter().filter_map(|point| Some((*point, percentile(&latencies, *point)?))).collect();
    Ok((outcome, seen))
}

fn parse(text: &str) -> Option<Outcome> {
    let number = |key: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim_start_matches([':', ' ', '=']).split_whitespace().next()?.parse().ok()
    };
    let requests = number("number of transactions actually processed")?;
    let errors = number("number of failed transactions").unwrap_or(0.0);
    Some(Outcome { requests, errors, seconds: requests / number("tps")?, ..Outcome::default() })
}

/// The latency of every transaction, from pgbench's log files, which are removed.
fn latencies(folder: &Path) -> Result<Vec<f64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("pgbench_log.") {
            let text = fs::read_to_string(entry.path())?;
            found.extend(text.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<f64>().ok()));
            fs::remove_file(entry.path())?;
        }
    }
    Ok(found)
}

fn client(program: &(impl Program + ?Sized), address: SocketAddr) -> Command {
    let mut command = program.command();
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string(), "-U", ROLE]);
    command
}

/// A program, or a command that already has some arguments.
trait Program {
    fn command(&self) -> Command;
}

impl Program for PathBuf {
    fn command(&self) -> Command {
        Command::new(self)
    }
}

impl Program for Command {
    fn command(&self) -> Command {
        let mut command = Command::new(self.get_program());
        command.args(self.get_args());
        command
    }
}

/// The same command, run by the user `postgres` if this process is root.
fn owned(command: &Command, as_owner: bool) -> Command {
    if !as_owner {
        return command.command();
    }
    let mut owned = Command::new("setpriv");
    owned.args(["--reuid", OWNER, "--regid", OWNER, "--init-groups", "--"]);
    owned.arg(command.get_program()).args(command.get_args());
    owned
}

fn quiet(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| describe(command))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: {}", describe(command), said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pgbench_output_is_parsed() {
        let text = "number of transactions actually processed: 500\nnumber of failed transactions: 2 (0.4%)\n\
                    latency average = 0.9 ms\ntps = 250.000000 (without initial connection time)\n";
        let outcome = parse(text).unwrap();
        assert_eq!((outcome.requests, outcome.seconds, outcome.errors), (500.0, 2.0, 2.0));
        assert!(parse("pgbench: error").is_none());
    }
}
