//! TLS to the endpoints of a cluster: verification, and the client certificate.
//!
//! Opens no file: the TLS store reads them and reports what is wrong with them.

use crate::Mistake;
use std::fmt;
use std::path::PathBuf;

use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use rustls_pki_types::ServerName;
use serde_yaml::Value;

use super::codec::{Codec, File, Flag, List, Optional, Own, Table, keys, map};
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::tls::VERSION;
use super::{Address, Endpoint, TlsVersion};

/// Maximum pins of one cluster. Pins exist in several so that the new key can be listed next to the old one.
const PINS_MAX: usize = 100;
/// The scheme of an endpoint that uses TLS.
const SCHEME: &str = "https://";
/// The default port of https, which URLs leave out (RFC 9110 4.2.2).
const HTTPS_PORT: u16 = 443;
/// How an endpoint without TLS may be written.
const PLAIN_SCHEME: &str = "http://";
const HTTP_PORT: u16 = 80;

/// How connections to the endpoints of a cluster are secured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// PEM: the trusted CAs; `None` uses the system's.
    pub ca_file: Option<PathBuf>,
    /// The host that certificates must be valid for and that is sent as SNI; `None` is the endpoint's own.
    pub server_name: Option<String>,
    /// The certificate for endpoints that request one.
    pub client_certificate: Option<ClientCertificate>,
    /// If not empty, the endpoint's certificate or public key must match one of these.
    pub pinned_sha256: Vec<Pin>,
    /// The minimum TLS version.
    pub min_version: TlsVersion,
    /// Accept any certificate; with pins, any certificate that matches a pin.
    pub danger_skip_verification: bool,
}

/// The files of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// PEM: the certificate, then the intermediate certificates.
    pub cert: PathBuf,
    /// PEM: its key, not encrypted.
    pub key: PathBuf,
}

/// SHA-256 of a certificate's public key (its SubjectPublicKeyInfo, as in RFC 7469 2.4) or of the whole certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin(pub [u8; 32]);

keys! { UpstreamTls, settle heeds_authorities {
    ca_file: None, Optional(File);
    server_name: None, Optional(SERVER_NAME);
    client_certificate: None, Optional(map());
    pinned_sha256: Vec::new(), List(PINS_MAX, PIN);
    min_version: TlsVersion::V12, VERSION;
    danger_skip_verification: false, Flag;
}}

keys! { ClientCertificate {
} required {
    cert: PathBuf::new(), "the path of a PEM file", File;
    key: PathBuf::new(), "the path of a PEM file", File;
}}

/// CAs only matter if certificates are verified.
fn heeds_authorities(tls: &mut UpstreamTls, fields: &mut Fields<'_>) {
    if tls.danger_skip_verification && tls.ca_file.is_some() {
        fields.mistake("ca_file has no effect with danger_skip_verification; remove one of them");
    }
}

impl fmt::Display for Pin {
    /// As in curl's `--pinnedpubkey`, without `sha256//`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(&self.0))
    }
}

impl Pin {
    /// Parses base64, with or without `sha256//`, or hexadecimal, with or without colons.
    fn parse(text: &str) -> Option<Self> {
        let bare = text.strip_prefix("sha256//").unwrap_or(text);
        let hex = bare.replace(':', "");
        let bytes = match hex.len() {
            64 => HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).ok()?,
            _ => BASE64.decode(bare.as_bytes()).ok()?,
        };
        bytes.try_into().ok().map(Self)
    }
}

/// From `tls`, or from endpoints that use `https://`.
pub(super) fn read(fields: &mut Fields<'_>, https: bool) -> Option<UpstreamTls> {
    let Some(item) = fields.get("tls") else {
        return https.then(UpstreamTls::default);
    };
    if item.is_off() {
        if https {
            item.mistake("the endpoints use https://; remove this, or their https://");
        }
        return None;
    }
    map().read(&item)
}

/// `tls` of a cluster.
pub(super) fn write(tls: Option<&UpstreamTls>) -> Value {
    tls.map_or(Value::from("off"), Table::written)
}

/// The shape of `tls`.
pub(super) fn shape() -> Shape {
    Shape::Map(UpstreamTls::keys()).or_off()
}

const SERVER_NAME: Own<String> =
    Own { read: server_name, write: |name| name.as_str().into(), shape: || Shape::TEXT };

const PIN: Own<Pin> = Own { read: pin, write: |pin| pin.to_string().into(), shape: || Shape::TEXT };

fn server_name(item: &Item<'_>) -> Option<String> {
    let text = item.text()?;
    if ServerName::try_from(text).is_err() {
        item.mistake(format!("{} is not a host; write a name or an address, without a port", quote(text)));
        return None;
    }
    Some(text.to_ascii_lowercase())
}

fn pin(item: &Item<'_>) -> Option<Pin> {
    let text = item.text()?;
    let pin = Pin::parse(text);
    if pin.is_none() {
        item.mistake(format!(
            "{} is not a SHA-256 digest; write 44 characters of base64 or 64 of hexadecimal",
            quote(text)
        ));
    }
    pin
}

/// An endpoint's address as text without `http://` or `https://`, and whether it used the latter.
pub(super) fn without_scheme(text: &str) -> Result<(String, bool), Mistake> {
    let (rest, scheme, port) = match (text.strip_prefix(SCHEME), text.strip_prefix(PLAIN_SCHEME)) {
        (Some(rest), _) => (rest, SCHEME, HTTPS_PORT),
        (_, Some(rest)) => (rest, PLAIN_SCHEME, HTTP_PORT),
        _ => return Ok((text.to_owned(), false)),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#', '@']) {
        return Err(format!("{} has more than a host; write {scheme}host:port", quote(text)).into());
    }
    let has_port =
        rest.rsplit_once(':').is_some_and(|(host, _)| !host.starts_with('[') || host.ends_with(']'));
    Ok((if has_port { rest.to_owned() } else { format!("{rest}:{port}") }, scheme == SCHEME))
}

/// The first endpoint of a cluster with TLS that has no name to verify certificates against.
pub(super) fn nameless<'e>(tls: Option<&UpstreamTls>, endpoints: &'e [Endpoint]) -> Option<&'e Address> {
    let wanted = tls.is_some_and(|tls| tls.server_name.is_none());
    let nameless = |address: &&Address| match address {
        Address::Ip(_) => false,
        Address::Name(name, _) => ServerName::try_from(name.as_str()).is_err(),
        Address::Unix(_) => true,
    };
    endpoints.iter().map(|endpoint| &endpoint.address).filter(|_| wanted).find(nameless)
}
