//! Whether this host matches the configuration: `sluice check` warns about names that do not resolve and addresses that
//! cannot be bound. Only warnings, because the file may be for another host, or for later.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use sluice_config::{Address, Config};
use sluice_engine::equipment::{Equipment, EquipmentError};
use socket2::{Domain, Protocol, Socket, Type};

use crate::commands;

/// Time limit for all names together.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of names that are looked up; each takes a thread.
const NAMES_MAX: usize = 64;

/// Reads the files without which sluice does not start: users, keys, networks, error pages.
///
/// # Errors
/// Names each that cannot be used, in a line of its own.
pub fn read_files(config: &Config) -> Result<(), EquipmentError> {
    Equipment::read(config, None).map(drop)
}

/// A sentence for each problem, prefixed with its path.
pub fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = unresolved(config);
    // If a sluice with this file is running, it uses these addresses itself.
    if !commands::answers(&config.control) {
        warnings.extend(taken(config));
    }
    warnings
}

/// Names of endpoints that do not resolve here.
fn unresolved(config: &Config) -> Vec<String> {
    let mut paths: BTreeMap<&str, String> = BTreeMap::new();
    for (cluster, settings) in &config.clusters {
        for (index, endpoint) in settings.endpoints.iter().enumerate() {
            if let Address::Name(host, _) = &endpoint.address {
                paths.entry(host).or_insert_with(|| format!("clusters.{cluster}.endpoints[{index}]"));
            }
        }
    }
    let left_out = paths.split_off(paths.keys().nth(NAMES_MAX).copied().unwrap_or("\u{10ffff}"));
    let (sender, results) = mpsc::channel();
    for host in paths.keys() {
        let (host, sender) = ((*host).to_owned(), sender.clone());
        // The system's resolver has its own, longer timeout; the thread ends with the process.
        let look = move || {
            let found = (host.as_str(), 0).to_socket_addrs().map(|mut addresses| addresses.next().is_some());
            let _ = sender.send((host, found));
        };
        // Without a thread, the name counts as not resolved in time.
        let _ = thread::Builder::new().spawn(look);
    }
    drop(sender);
    let until = Instant::now() + PATIENCE;
    let mut warnings = Vec::new();
    let mut warn = |path: &str, host: &str, what: &str| {
        warnings.push(format!("{path}: the name {host:?} {what}; requests get 502 until it resolves"));
    };
    while let Ok((host, found)) = results.recv_timeout(until.saturating_duration_since(Instant::now())) {
        let path = paths.remove(host.as_str()).unwrap_or_default();
        match found {
            Ok(true) => {}
            Ok(false) => warn(&path, &host, "has no address"),
            Err(error) => warn(&path, &host, &format!("does not resolve here ({error})")),
        }
    }
    for (host, path) in &paths {
        warn(path, host, &format!("does not resolve within {} s", PATIENCE.as_secs()));
    }
    if let Some((host, path)) = left_out.first_key_value() {
        let count = left_out.len();
        warnings.push(format!(
            "{path}: the name {host:?} and all that follow ({count} in total) were not looked up"
        ));
    }
    warnings.sort();
    warnings
}

/// Addresses that are in use, or that this host does not have.
fn taken(config: &Config) -> Vec<String> {
    let listeners = config.listeners.iter().enumerate();
    let listeners =
        listeners.map(|(index, listener)| (format!("listeners[{index}].address"), &listener.address));
    let admin = config.admin.iter().map(|address| ("admin".to_owned(), address));
    let of_ip = listeners.chain(admin).filter_map(|(path, address)| match address {
        Address::Ip(ip) => Some((path, *ip)),
        _ => None,
    });
    of_ip.filter_map(|(path, ip)| Some(format!("{path}: {}", obstacle(ip)?))).collect()
}

/// Why an address cannot be bound. Never listens: the bound socket is closed at once.
fn obstacle(ip: SocketAddr) -> Option<String> {
    let bind = || {
        let socket = Socket::new(Domain::for_address(ip), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&ip.into())
    };
    match std::io::Result::<()>::err(bind())?.kind() {
        ErrorKind::AddrInUse => {
            Some(format!("{ip} is in use by another program; stop it, or choose another port"))
        }
        ErrorKind::AddrNotAvailable => Some(format!("{} is not an address of this host", ip.ip())),
        // Ports below 1024 are restricted, but the user who checks may not be the user who runs sluice.
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;

    use sluice_config::parse;

    use super::*;

    fn of(text: &str) -> Vec<String> {
        warnings(&parse("a.yaml", text, &[]).unwrap())
    }

    #[test]
    fn ports_in_use_and_foreign_addresses_are_reported() {
        let busy = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = busy.local_addr().unwrap();
        let text = format!(
            "control: off\nadmin: {address}\nlisteners:\n- address: 192.0.2.1:8080\n- {{address: 127.0.0.1:0, name: b}}\nclusters: {{default: {{endpoints: [127.0.0.1:1]}}}}\n"
        );
        let said = of(&text);
        assert_eq!(
            said,
            [
                "listeners[0].address: 192.0.2.1 is not an address of this host".to_owned(),
                format!("admin: {address} is in use by another program; stop it, or choose another port"),
            ]
        );
    }

    #[test]
    fn unresolved_names_are_reported_once() {
        let text = "control: off\nlisteners: [{address: 127.0.0.1:0}]\n\
                    clusters:\n  default: {endpoints: [localhost:1, none.invalid:1, none.invalid:2]}\n";
        let said = of(text);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("clusters.default.endpoints[1]: the name \"none.invalid\" does not resolve")
        );
    }

    #[test]
    fn names_beyond_the_limit_are_reported_as_skipped() {
        let names: String = (0..NAMES_MAX + 3).map(|n| format!("\"n{n:03}.invalid:1\", ")).collect();
        let said = of(&format!(
            "control: off\nlisteners: [{{address: 127.0.0.1:0}}]\nclusters:\n  default: {{endpoints: [{names}]}}\n"
        ));
        assert_eq!(said.len(), NAMES_MAX + 1, "{said:?}");
        let left_out = format!(
            "the name \"n{NAMES_MAX:03}.invalid\" and all that follow (3 in total) were not looked up"
        );
        assert!(said.iter().any(|line| line.contains(&left_out)), "{said:?}");
    }
}
