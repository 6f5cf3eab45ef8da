//! Targets as named in deploys: `host:port`, or `host` for port 80.

use sluice_config::{Address, Endpoint};

use super::error::ServiceError;

/// The port of a target without a port: the port of `http:`.
const PORT: u16 = 80;

/// The endpoint of a target.
///
/// # Errors
/// Targets that kamal-proxy refuses, and invalid ports. kamal-proxy's pattern is `^(\w[-_.\w+]+)(:\d+)?$`, so a host
/// has at least two characters, and IPv6 addresses are not possible.
pub fn endpoint(target: &str) -> Result<Endpoint, ServiceError> {
    let refused = || ServiceError::InvalidTarget(target.to_owned());
    let (host, port) = match target.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (target, None),
    };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut characters = host.chars();
    let starts_well = characters.next().is_some_and(word);
    let rest = characters.as_str();
    if !starts_well || rest.is_empty() || !rest.chars().all(|c| word(c) || "-.+".contains(c)) {
        return Err(refused());
    }
    let port = match port {
        None => PORT,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse().ok().filter(|&port| port > 0).ok_or_else(refused)?
        }
        Some(_) => return Err(refused()),
    };
    let address = match host.parse() {
        Ok(ip) => Address::Ip((std::net::IpAddr::V4(ip), port).into()),
        Err(_) => Address::Name(host.to_owned(), port),
    };
    Ok(Endpoint { address, weight: 1, max_in_flight: None, bypass: None, backup: false })
}

/// The endpoints of a list of targets.
///
/// # Errors
/// As [`endpoint`], for the first invalid target.
pub fn endpoints(targets: &[String]) -> Result<Vec<Endpoint>, ServiceError> {
    targets.iter().map(|target| endpoint(target)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_parsed() {
        for (target, address) in [
            ("web-1:3000", "web-1:3000"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("127.0.0.1", "127.0.0.1:80"),
            ("6a37c269ff02:3000", "6a37c269ff02:3000"),
            ("a_b.c", "a_b.c:80"),
        ] {
            assert_eq!(endpoint(target).unwrap().address.to_string(), address);
        }
    }

    #[test]
    fn invalid_targets_are_refused() {
        for target in [
            "",
            "a",
            "a:1",
            "bad host",
            "[::1]:80",
            "web:",
            "web:x",
            "web:99999",
            "web:0",
            "-a:1",
            "http://a",
        ] {
            let said = endpoint(target).unwrap_err().to_string();
            assert_eq!(said, format!("{target} :invalid host pattern"));
        }
    }
}
