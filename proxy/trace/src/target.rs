//! The port or process that a script should watch, if the user names none: found through sluice's admin listener and by
//! name.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Options, http, sockets};

const SLUICE: &str = "sluice";

/// The meaning of a script's first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A port that an origin listens on.
    Port,
    /// A port, or every port if none is named.
    AnyPort,
    /// A process; sluice if none is named.
    Process,
}

/// The target, and how it was found, in words.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) number: u64,
    pub(super) words: String,
}

/// Finds the target.
///
/// # Errors
/// When it does not exist, or there are several; with the option to add.
pub(super) fn find(subject: Subject, options: &Options) -> Result<Target> {
    match subject {
        Subject::Process => Ok(process(options)?),
        Subject::AnyPort if (options.port, options.pid) == (None, None) => {
            Ok(Target { number: 0, words: "every port".to_owned() })
        }
        Subject::AnyPort | Subject::Port => port(options),
    }
}

fn process(options: &Options) -> Result<Target> {
    let (pid, how) = match (options.pid, options.port) {
        (Some(pid), _) => (pid, "as requested".to_owned()),
        (None, Some(port)) => (sockets::owner(port)?, format!("which listens on port {port}")),
        (None, None) => (sluice(options)?, "sluice".to_owned()),
    };
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .with_context(|| format!("there is no process {pid}"))?;
    Ok(Target { number: pid.into(), words: format!("process {pid}, {} ({how})", name.trim()) })
}

fn port(options: &Options) -> Result<Target> {
    if let Some(port) = options.port {
        // An explicit refusal is better than a trace that shows nothing.
        sockets::depth(port)?;
        return Ok(Target { number: port.into(), words: format!("port {port}") });
    }
    if let Some(pid) = options.pid {
        let ports = sockets::ports(pid)?;
        let port = only(&ports, &format!("ports that process {pid} listens on"), "--port")?;
        return Ok(Target { number: port.into(), words: format!("port {port} of process {pid}") });
    }
    let admin = admin(options).context("no --port or --pid, and no response from sluice")?;
    let clusters = http::get(&admin, "/clusters")?;
    let ports = endpoint_ports(&clusters);
    let port = only(&ports, &format!("endpoint ports that {admin} names"), "--port")?;
    sockets::depth(port)
        .with_context(|| format!("the endpoint that {admin} names is not on this machine"))?;
    Ok(Target { number: port.into(), words: format!("port {port}, the endpoint of the sluice at {admin}") })
}

/// The process of sluice: that of the named admin listener, otherwise the only one with its name.
fn sluice(options: &Options) -> Result<u32> {
    if let Some(admin) = &options.admin {
        let port = admin.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        return sockets::owner(port.with_context(|| format!("--admin {admin}: write host:port"))?);
    }
    let pids: BTreeSet<u32> = sockets::named(SLUICE)?.into_iter().collect();
    only(&pids, "processes named sluice", "--pid")
}

/// The address of sluice's admin listener: of all its ports, the one whose /config says so.
fn admin(options: &Options) -> Result<String> {
    if let Some(admin) = &options.admin {
        return Ok(admin.clone());
    }
    let pid = sluice(options)?;
    for port in sockets::ports(pid)? {
        let address = format!("127.0.0.1:{port}");
        let is_admin =
            |config: Value| config["admin"].as_str().is_some_and(|own| own.ends_with(&format!(":{port}")));
        if http::get(&address, "/config").is_ok_and(is_admin) {
            return Ok(address);
        }
    }
    bail!("sluice (process {pid}) has no admin listener on 127.0.0.1: name it with --admin")
}

fn endpoint_ports(clusters: &Value) -> BTreeSet<u16> {
    let endpoints =
        clusters.as_array().into_iter().flatten().filter_map(|cluster| cluster["endpoints"].as_array());
    endpoints.flatten().filter_map(|one| one["label"].as_str()?.rsplit_once(':')?.1.parse().ok()).collect()
}

fn only<T: Copy + Ord + std::fmt::Debug>(found: &BTreeSet<T>, what: &str, option: &str) -> Result<T> {
    match found.first() {
        None => bail!("there are no {what}: choose with {option}"),
        Some(one) if found.len() == 1 => Ok(*one),
        Some(_) => bail!("there are several {what}, {found:?}: choose one with {option}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_on_unix_sockets_have_no_port() {
        let clusters = serde_json::json!([{"name": "a", "endpoints": [
            {"label": "127.0.0.1:3000"}, {"label": "[::1]:3001"}, {"label": "unix:/run/puma.sock"}]}]);
        assert_eq!(endpoint_ports(&clusters), BTreeSet::from([3000, 3001]));
    }

    #[test]
    fn ambiguous_targets_are_listed() {
        let say = |found: &[u16]| {
            only(&found.iter().copied().collect(), "ports", "--port").map_err(|e| e.to_string())
        };
        assert_eq!(say(&[80]), Ok(80));
        assert_eq!(say(&[]), Err("there are no ports: choose with --port".to_owned()));
        assert_eq!(
            say(&[80, 81]),
            Err("there are several ports, {80, 81}: choose one with --port".to_owned())
        );
    }

    #[test]
    fn a_port_without_a_listener_is_refused() {
        let options = Options { port: Some(1), ..Options::default() };
        let error = find(Subject::Port, &options).expect_err("the port must be refused").to_string();
        assert_eq!(error, "nothing listens on port 1");
    }
}
