//! Addresses as text: `ip:port`, `[v6]:port`, `name:port`, `unix:/path`. Nothing is resolved here.

use crate::Mistake;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use super::Address;
use super::problem::quote;
use super::text::is_host_name;

/// Maximum length of a unix socket path in bytes: `sun_path` holds 108 with its NUL (unix(7)).
const UNIX_PATH_BYTES_MAX: usize = 107;

/// An address with the host that `8080` and `:8080` leave out.
pub fn with_host(address: &str, host: &str) -> String {
    let port = address.strip_prefix(':').unwrap_or(address);
    if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) {
        return format!("{host}:{port}");
    }
    address.to_owned()
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(address) => write!(f, "{address}"),
            Address::Name(name, port) => write!(f, "{name}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = Mistake;

    /// Parses an address; the error says what to write.
    fn from_str(text: &str) -> Result<Self, Mistake> {
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(text, path);
        }
        if text.contains("://") {
            return Err(format!("{} is a URL; write host:port", quote(text)).into());
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Address::Ip(address));
        }
        if text.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6()) {
            return Err(format!("{} has no port; write [{text}]:port", quote(text)).into());
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err(match text.starts_with('/') {
                true => format!("{} is a path; write unix:{text}", quote(text)).into(),
                false => format!("{} has no port; write host:port", quote(text)).into(),
            });
        };
        named(text, host, port)
    }
}

fn unix(text: &str, path: &str) -> Result<Address, Mistake> {
    if !path.starts_with('/') {
        return Err(format!("{} has no absolute path; write unix:/path", quote(text)).into());
    }
    if path.len() > UNIX_PATH_BYTES_MAX {
        return Err(format!(
            "{} is too long; the system takes paths up to {UNIX_PATH_BYTES_MAX} bytes",
            quote(text)
        )
        .into());
    }
    if path.chars().any(char::is_control) {
        return Err(format!("{} has a control character; remove it", quote(text)).into());
    }
    Ok(Address::Unix(PathBuf::from(path)))
}

fn named(text: &str, host: &str, port: &str) -> Result<Address, Mistake> {
    let Some(number) = port.parse::<u16>().ok().filter(|_| port.bytes().all(|b| b.is_ascii_digit())) else {
        return Err(format!("{} has no port from 1 to 65535; write host:port", quote(text)).into());
    };
    if host.contains(':') {
        return Err(format!(
            "{} is ambiguous; write an IPv6 address in brackets, as [::1]:{port}",
            quote(text)
        )
        .into());
    }
    let last_label = host.rsplit('.').next().unwrap_or_default();
    if last_label.bytes().all(|b| b.is_ascii_digit()) && !host.is_empty() {
        return Err(format!("{} has no valid IPv4 address; write four numbers up to 255", quote(text)).into());
    }
    if host.is_empty() {
        return Err(format!("{} has no host; write host:port", quote(text)).into());
    }
    if !is_host_name(host) {
        return Err(format!(
            "{} has no valid host name; write letters, digits, dots and hyphens",
            quote(text)
        )
        .into());
    }
    Ok(Address::Name(host.to_ascii_lowercase(), number))
}

impl Address {
    /// The port; `None` for a unix socket.
    pub fn port(&self) -> Option<u16> {
        match self {
            Address::Ip(address) => Some(address.port()),
            Address::Name(_, port) => Some(*port),
            Address::Unix(_) => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_address_form_round_trips() {
        for text in ["127.0.0.1:80", "[::1]:8080", "api.internal:3000", "unix:/run/app.sock", "0.0.0.0:0"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("API.Internal:1".parse::<Address>().unwrap(), Address::Name("api.internal".into(), 1));
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, expected) in [
            ("10.0.0.5", "\"10.0.0.5\" has no port; write host:port"),
            ("api", "\"api\" has no port; write host:port"),
            ("http://api:80", "\"http://api:80\" is a URL; write host:port"),
            ("/run/app.sock", "\"/run/app.sock\" is a path; write unix:/run/app.sock"),
            ("unix:app.sock", "\"unix:app.sock\" has no absolute path; write unix:/path"),
            ("::1", "\"::1\" has no port; write [::1]:port"),
            ("fe80::1:2:3:4:5:80x", "\"fe80::1:2:3:4:5:80x\" has no port from 1 to 65535; write host:port"),
            ("1:::80", "\"1:::80\" is ambiguous; write an IPv6 address in brackets, as [::1]:80"),
            ("api:70000", "\"api:70000\" has no port from 1 to 65535; write host:port"),
            ("api:+80", "\"api:+80\" has no port from 1 to 65535; write host:port"),
            ("10.0.0.256:80", "\"10.0.0.256:80\" has no valid IPv4 address; write four numbers up to 255"),
            (":80", "\":80\" has no host; write host:port"),
            ("a b:80", "\"a b:80\" has no valid host name; write letters, digits, dots and hyphens"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap_err(), expected.into());
        }
        assert!(format!("unix:/{}", "a".repeat(106)).parse::<Address>().is_ok());
        assert!(format!("unix:/{}", "a".repeat(107)).parse::<Address>().is_err());
    }
}
