//! Which requests are allowed. The danger is browsers: a page of another site may send requests here, to our address or
//! to a name that it made resolve to loopback (DNS rebinding).

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hyper::Request;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use sluice_config::Address;

use super::{AdminListener, Token};

/// What a request must contain.
#[derive(Debug)]
pub struct Gate {
    hosts: Hosts,
    token: Option<SharedToken>,
}

/// The current token, which a reload may replace.
pub(crate) type SharedToken = Arc<ArcSwap<Token>>;

/// Names allowed as Host, without port.
#[derive(Debug)]
enum Hosts {
    /// Browsers cannot connect (a unix socket), or they need the token, which pages of other sites do not have.
    Any,
    /// The listener is on loopback.
    Only(Vec<String>),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Its Host is not this listener.
    Host,
    /// A page of another site sent it.
    Site,
    /// Its token is missing or wrong.
    Token,
}

impl Gate {
    /// The gate of a listener that was bound as `configured`.
    pub fn new(listener: &AdminListener, configured: &Address, token: Option<SharedToken>) -> Self {
        let bound = match listener {
            AdminListener::Tcp(listener) => listener.local_addr().ok().map(|address| address.ip()),
            AdminListener::Unix(_) => None,
        };
        let hosts = match bound {
            Some(ip) if is_loopback(ip) => {
                let own = match configured {
                    Address::Name(name, _) => name.to_ascii_lowercase(),
                    _ => as_host(ip),
                };
                Hosts::Only(vec!["localhost".into(), "127.0.0.1".into(), "[::1]".into(), own])
            }
            _ => Hosts::Any,
        };
        Self { hosts, token }
    }

    /// Checks the host and site of a request, and its token if what it requests is `secret`.
    pub(super) fn check<B>(&self, request: &Request<B>, secret: bool) -> Result<(), Refusal> {
        let host = self.host(request).ok_or(Refusal::Host)?;
        if !is_same_site(request, &host) {
            return Err(Refusal::Site);
        }
        match &self.token {
            Some(token) if secret && !bearer(request).is_some_and(|given| token.load().is(given)) => {
                Err(Refusal::Token)
            }
            _ => Ok(()),
        }
    }

    /// The requested host and port, if they are this listener's.
    fn host<B>(&self, request: &Request<B>) -> Option<String> {
        let named = only(request, &HOST);
        let Hosts::Only(names) = &self.hosts else {
            return Some(named.unwrap_or_default().to_ascii_lowercase());
        };
        let named = named?.to_ascii_lowercase();
        let is_ours = |authority: &Authority| {
            !authority.as_str().contains('@')
                && names.iter().any(|name| name.eq_ignore_ascii_case(authority.host()))
        };
        // A target in absolute form also names the host (RFC 9112 section 3.2.2).
        if !request.uri().authority().is_none_or(is_ours) {
            return None;
        }
        named.parse().is_ok_and(|authority| is_ours(&authority)).then_some(named)
    }
}

impl Refusal {
    /// The response: a status and a sentence.
    pub(super) fn answer(self) -> (u16, &'static str) {
        match self {
            Self::Host => (421, "Host must be localhost or the address of this listener\n"),
            Self::Site => (403, "requests from pages of other sites are refused\n"),
            Self::Token => (401, "send the token of admin_token_file: Authorization: Bearer TOKEN\n"),
        }
    }
}

/// Whether only this host can connect to the address.
pub(super) fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

fn as_host(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// The value of a field that occurs exactly once.
fn only<'r, B>(request: &'r Request<B>, name: &HeaderName) -> Option<&'r str> {
    let mut all = request.headers().get_all(name).iter();
    let value = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(value)
}

/// Whether it was sent by one of our pages, or not by a page.
fn is_same_site<B>(request: &Request<B>, host: &str) -> bool {
    let own = |origin: &str| {
        let origin = origin.to_ascii_lowercase();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority == Some(host)
    };
    if request.headers().contains_key(ORIGIN) && !only(request, &ORIGIN).is_some_and(own) {
        return false;
    }
    // Links from other sites are allowed; images and scripts of other sites are not (Fetch Metadata).
    let says = |name: &'static str| only(request, &HeaderName::from_static(name));
    !request.headers().contains_key("sec-fetch-site")
        || matches!(says("sec-fetch-site"), Some("same-origin" | "none"))
        || says("sec-fetch-mode") == Some("navigate") && says("sec-fetch-dest") == Some("document")
}

fn bearer<B>(request: &Request<B>) -> Option<&[u8]> {
    let (scheme, token) = only(request, &AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim().as_bytes())
}
