//! Listening processes and their accept queues, read from /proc like `ss -ltnp`.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail};

const LISTEN: &str = "0A";

/// A listening TCP socket.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// Its port.
    pub port: u16,
    /// Connections waiting to be accepted.
    pub depth: u64,
    inode: u64,
}

/// Every listening TCP socket of this network namespace.
///
/// # Errors
/// /proc cannot be read.
pub fn listeners() -> Result<Vec<Listener>> {
    let mut found = parse(&fs::read_to_string("/proc/net/tcp").context("/proc/net/tcp")?);
    // Absent where IPv6 is off.
    found.extend(parse(&fs::read_to_string("/proc/net/tcp6").unwrap_or_default()));
    Ok(found)
}

/// Number of connections waiting on a port now.
///
/// # Errors
/// Nothing listens there.
pub fn depth(port: u16) -> Result<u64> {
    let depths: Vec<u64> = listeners()?.iter().filter(|one| one.port == port).map(|one| one.depth).collect();
    if depths.is_empty() {
        bail!("nothing listens on port {port}");
    }
    Ok(depths.iter().sum())
}

/// The one process that listens on a port.
///
/// # Errors
/// There is none, or more than one.
pub fn owner(port: u16) -> Result<u32> {
    let inodes: BTreeSet<u64> =
        listeners()?.iter().filter(|one| one.port == port).map(|one| one.inode).collect();
    if inodes.is_empty() {
        bail!("nothing listens on port {port}");
    }
    let owners: Vec<u32> =
        processes()?.into_iter().filter(|pid| !inodes.is_disjoint(&socket_inodes(*pid))).collect();
    match owners[..] {
        [pid] => Ok(pid),
        [] => bail!("port {port} belongs to a process that is not visible here"),
        _ => bail!("processes {owners:?} listen on port {port}: choose one with --pid"),
    }
}

/// The ports on which a process listens.
///
/// # Errors
/// /proc cannot be read.
pub fn ports(pid: u32) -> Result<BTreeSet<u16>> {
    let inodes = socket_inodes(pid);
    Ok(listeners()?.iter().filter(|one| inodes.contains(&one.inode)).map(|one| one.port).collect())
}

/// Processes with this name.
///
/// # Errors
/// /proc cannot be read.
pub fn named(name: &str) -> Result<Vec<u32>> {
    let is_named =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name);
    // `sluice trace` has the name of what it looks for.
    let own = std::process::id();
    Ok(processes()?.into_iter().filter(|pid| *pid != own).filter(is_named).collect())
}

fn processes() -> Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").context("/proc")?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

fn socket_inodes(pid: u32) -> BTreeSet<u64> {
    // The process may end meanwhile: then it has none.
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return BTreeSet::new();
    };
    let inode =
        |link: std::path::PathBuf| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    entries.flatten().filter_map(|entry| inode(fs::read_link(entry.path()).ok()?)).collect()
}

/// The listening lines of /proc/net/tcp or tcp6.
fn parse(text: &str) -> Vec<Listener> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        if *words.get(3)? != LISTEN {
            return None;
        }
        let port = u16::from_str_radix(words[1].rsplit_once(':')?.1, 16).ok()?;
        let depth = u64::from_str_radix(words.get(4)?.split_once(':')?.1, 16).ok()?;
        Some(Listener { port, depth, inode: words.get(9)?.parse().ok()? })
    };
    text.lines().skip(1).filter_map(line).collect()
}

/// Number of context switches of a process so far, excluding threads that have ended.
///
/// # Errors
/// The process has ended.
pub fn switches(pid: u32) -> Result<u64> {
    let folder = format!("/proc/{pid}/task");
    let mut sum = 0;
    for task in fs::read_dir(&folder).context(folder)?.flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let count = |line: &str| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok();
        sum += status.lines().filter_map(count).sum::<u64>();
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn own_listener_is_found_with_its_queue() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(owner(port).unwrap(), std::process::id());
        assert!(ports(std::process::id()).unwrap().contains(&port));
        assert_eq!(depth(port).unwrap(), 0);
        let _waiting = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        assert_eq!(depth(port).unwrap(), 1);
        drop(listener);
        let error = depth(port).unwrap_err().to_string();
        assert_eq!(error, format!("nothing listens on port {port}"));
    }

    #[test]
    fn only_listening_lines_count() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:2454 00000000:0000 0A 00000000:0000001C 00:00000000 00000000     0        0 4711 1 0\n\
            1: 0100007F:2454 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n";
        assert_eq!(parse(text), [Listener { port: 9300, depth: 28, inode: 4711 }]);
    }
}
