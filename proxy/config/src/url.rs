//! URLs that sluice itself requests: a collector of spans, and the application that decides about names.

use std::fmt;
use std::net::SocketAddr;

use super::problem::quote;
use super::{Address, Mistake};

const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// An http or https URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUrl {
    /// Whether the scheme is https.
    pub tls: bool,
    /// Its address; never a unix socket.
    pub address: Address,
    /// The path, including the query, as it is written.
    pub path: String,
}

impl HttpUrl {
    /// A URL of this host.
    pub(super) fn here(port: u16, path: &str) -> Self {
        let address = Address::Ip(SocketAddr::from(([127, 0, 0, 1], port)));
        Self { tls: false, address, path: path.to_owned() }
    }

    /// Parses a URL. Without a port, it has the port of its scheme; without a path, it has `path`.
    ///
    /// # Errors
    /// Why the URL cannot be used, and what to write.
    pub fn parse(url: &str, path: &str) -> Result<Self, Mistake> {
        let (tls, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(format!("{} is not a URL; write http://host:port/path", quote(url)).into()),
        };
        let (authority, path) = rest.find('/').map_or((rest, path), |at| rest.split_at(at));
        let has_port = authority.rsplit_once(']').map_or(authority, |(_, after)| after).contains(':');
        let address = if has_port {
            authority.parse::<Address>()?
        } else {
            format!("{authority}:{}", default_port(tls)).parse::<Address>()?
        };
        if matches!(address, Address::Unix(_)) {
            return Err("a unix socket cannot be the host of a URL; write host:port".into());
        }
        Ok(Self { tls, address, path: path.to_owned() })
    }

    /// Host and port for the field Host: without the port if it is that of the scheme (RFC 9110 section 4.2.3).
    pub fn authority(&self) -> String {
        let written = self.address.to_string();
        let without = written.strip_suffix(&format!(":{}", default_port(self.tls)));
        without.map_or_else(|| written.clone(), str::to_owned)
    }
}

fn default_port(tls: bool) -> u16 {
    if tls { HTTPS_PORT } else { HTTP_PORT }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http{}://{}{}", if self.tls { "s" } else { "" }, self.address, self.path)
    }
}
