//! A listener's TLS: certificates, negotiation, and client authentication.
//!
//! Opens no file: the TLS store reads the certificates and reports what is wrong with them.

use std::path::PathBuf;

use serde_yaml::Value;

use super::codec::{File, Flag, List, Optional, Own, Table, keys, map, number, word};
use super::names::words;
use super::nearest::nearest;
use super::out::{Out, file, list};
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::{Key, Shape};
use super::{Listener, ListenerAcme, Word, acme_names};

/// The cipher suites that can be configured, and the version of each. Listed here so that reading a file needs no TLS
/// library; a test of the TLS store compares them with the library's.
pub const CIPHER_SUITES: &[(&str, TlsVersion)] = &[
    ("TLS13_AES_256_GCM_SHA384", TlsVersion::V13),
    ("TLS13_AES_128_GCM_SHA256", TlsVersion::V13),
    ("TLS13_CHACHA20_POLY1305_SHA256", TlsVersion::V13),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", TlsVersion::V12),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", TlsVersion::V12),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", TlsVersion::V12),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", TlsVersion::V12),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", TlsVersion::V12),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", TlsVersion::V12),
];

/// Maximum number of pairs and folders of one listener.
const CERTIFICATES_MAX: usize = 1000;
/// TLS termination on a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Where certificates are; the first one is for clients that send no server name, or a name without a certificate.
    pub certificates: Vec<CertificateFiles>,
    /// Names that certificates are issued for; `None` is none.
    pub acme: Option<ListenerAcme>,
    /// Whether the certificates of deployed services are served too.
    pub services: bool,
    /// The minimum TLS version.
    pub min_version: TlsVersion,
    /// Names of the cipher suites, as in rustls; empty is all of its suites.
    pub cipher_suites: Vec<String>,
    /// Whether clients get session tickets (RFC 8446 section 2.2, RFC 5077).
    pub session_tickets: bool,
    /// Client authentication.
    pub client_auth: ClientAuth,
    /// Time limit from accepting the connection to the end of its handshake, in milliseconds.
    pub handshake_timeout_ms: u64,
    /// Concurrent handshakes, over all workers.
    pub handshakes_max: usize,
    /// How often the files are checked for changes, in milliseconds; 0 is never.
    pub watch_interval_ms: u64,
}

keys! { Tls {
    services: false, Flag;
    min_version: TlsVersion::V12, VERSION;
    cipher_suites: Vec::new(), List(CIPHER_SUITES.len(), SUITE);
    session_tickets: true, Flag;
    client_auth: ClientAuth::default(), map();
    // A few round trips over a bad radio link; a slower client will not complete it.
    handshake_timeout_ms: 10_000, number(100..=600_000);
    // About 100 MB if all of them are slow; a core does a few thousand a second.
    handshakes_max: 4096, number(1..=1_000_000);
    // A renewed certificate is used soon, at the cost of a few calls to stat.
    watch_interval_ms: 10_000, number(0..=86_400_000);
} rest {
    certificates: Vec::new(),
    acme: None,
}}

keys! { ClientAuth {
    mode: ClientAuthMode::Off, word();
    ca_file: None, Optional(File);
}}

/// A TLS version; without quotes YAML reads it as a number.
pub(super) const VERSION: Own<TlsVersion> = Own {
    read: version,
    write: |version| version.word().into(),
    shape: || Shape::OneOf(vec!["1.2".into(), "1.3".into(), 1.2.into(), 1.3.into()]),
};

const SUITE: Own<String> = Own {
    read: suite,
    write: |name| name.as_str().into(),
    shape: || Shape::words(&CIPHER_SUITES.iter().map(|(name, _)| *name).collect::<Vec<_>>()),
};

/// Where certificates and their keys are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CertificateFiles {
    /// One certificate.
    Pair {
        /// PEM: the certificate, then the intermediate certificates.
        cert: PathBuf,
        /// PEM: its key, not encrypted.
        key: PathBuf,
        /// DER: an OCSP response to staple.
        ocsp: Option<PathBuf>,
    },
    /// All pairs of a folder: NAME.pem or NAME.crt with NAME.key, or fullchain.pem with privkey.pem in subfolders.
    Folder(PathBuf),
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// RFC 5246.
    V12,
    /// RFC 8446.
    V13,
}

words!(TlsVersion {
    V12 = "1.2",
    V13 = "1.3",
});

/// Client authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAuth {
    /// Whether clients must present a certificate.
    pub mode: ClientAuthMode,
    /// PEM: the CAs that sign client certificates.
    pub ca_file: Option<PathBuf>,
}

/// Whether clients must present a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuthMode {
    /// No certificate is requested.
    #[default]
    Off,
    /// Clients without a certificate may connect; a certificate that is presented must be valid.
    Optional,
    /// Clients without a certificate are refused.
    Required,
}

words!(ClientAuthMode {
    Off = "off",
    Optional = "optional",
    Required = "required",
});

impl Listener {
    /// Whether clients are requested to present a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.client_auth.mode != ClientAuthMode::Off)
    }
}

/// `tls`: off, or a map.
pub(super) fn tls(listener: &mut Fields<'_>) -> Option<Tls> {
    let item = listener.get("tls").filter(|item| !item.is_off())?;
    let mut tls = Tls::default();
    let mut fields = item.fields();
    tls.acme = acme_names::listener(&mut fields);
    tls.read_keys(&mut fields);
    tls.certificates = certificates(&mut fields, tls.acme.is_some() || tls.services);
    fields.finish();
    Some(tls)
}

/// `tls` of a listener as values.
pub(super) fn write(tls: Option<&Tls>) -> Value {
    let Some(tls) = tls else {
        return Value::from("off");
    };
    let mut out = Out::default();
    out.put("certificates", list(&tls.certificates, write_files));
    out.put("acme", tls.acme.as_ref().map_or(Value::from("off"), Table::written));
    tls.write_keys(&mut out);
    out.done()
}

/// The shape of `tls`.
pub(super) fn shape() -> Shape {
    let files = ["cert", "key", "ocsp", "folder"].map(|name| Key::optional(name, Shape::TEXT));
    let mut keys = vec![
        Key::optional("certificates", Shape::list(Shape::Map(files.into()), CERTIFICATES_MAX)),
        Key::optional("acme", Shape::Map(ListenerAcme::keys()).or_off()),
    ];
    keys.extend(Tls::keys());
    Shape::Map(keys).or_off()
}

fn write_files(files: &CertificateFiles) -> Value {
    let mut out = Out::default();
    match files {
        CertificateFiles::Folder(folder) => out.put("folder", file(folder)),
        CertificateFiles::Pair { cert, key, ocsp } => {
            out.put("cert", file(cert));
            out.put("key", file(key));
            out.put_some("ocsp", ocsp.as_deref().map(file));
        }
    }
    out.done()
}

/// `certificates` is optional if ACME issues them.
fn certificates(fields: &mut Fields<'_>, issued: bool) -> Vec<CertificateFiles> {
    let write = "[{cert: /path, key: /path}] or [{folder: /path}]";
    let given = if issued { fields.get("certificates") } else { fields.require("certificates", write) };
    let Some(item) = given else {
        return Vec::new();
    };
    if item.value.as_sequence().is_some_and(Vec::is_empty) && !issued {
        item.mistake(format!("the list is empty; write {write}"));
    }
    item.list(CERTIFICATES_MAX).iter().filter_map(files).collect()
}

fn files(item: &Item<'_>) -> Option<CertificateFiles> {
    let mut fields = item.fields();
    let [folder, cert, key, ocsp] =
        ["folder", "cert", "key", "ocsp"].map(|name| fields.text(name).map(PathBuf::from));
    let read = match (folder, cert) {
        (Some(_), _) if key.is_some() || ocsp.is_some() => {
            fields.mistake("a folder's keys and OCSP responses are found by name; remove key and ocsp");
            None
        }
        (Some(_), Some(_)) => {
            fields.mistake("folder and cert exclude each other; keep one");
            None
        }
        (Some(folder), None) => Some(CertificateFiles::Folder(folder)),
        // As in HAProxy: certificate and key in one file.
        (None, Some(cert)) => {
            Some(CertificateFiles::Pair { key: key.unwrap_or_else(|| cert.clone()), cert, ocsp })
        }
        (None, None) => {
            if !fields.is_broken() {
                fields.mistake("no certificate is named; write cert and key, or folder");
            }
            None
        }
    };
    fields.finish();
    read
}

/// Without quotes YAML reads the version as a number.
pub(super) fn version(item: &Item<'_>) -> Option<TlsVersion> {
    let text = match item.value {
        Value::Number(number) => number.to_string(),
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    let found = TlsVersion::ALL.iter().copied().find(|version| version.word() == text);
    if found.is_none() {
        item.mistake(match text.as_str() {
            "1.0" | "1.1" | "1" => format!("TLS {text} is deprecated (RFC 8996); write \"1.2\" or \"1.3\""),
            _ => "this is not a TLS version; write \"1.2\" or \"1.3\"".to_owned(),
        });
    }
    found
}

fn suite(item: &Item<'_>) -> Option<String> {
    let text = item.text()?;
    let names: Vec<String> = CIPHER_SUITES.iter().map(|(name, _)| (*name).to_owned()).collect();
    if names.iter().any(|name| name == text) {
        return Some(text.to_owned());
    }
    let words: Vec<&str> = names.iter().map(String::as_str).collect();
    let hint = match nearest(text, &words) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("known: {}", words.join(", ")),
    };
    item.mistake(format!("no cipher suite is named {}; {hint}", quote(text)));
    None
}
