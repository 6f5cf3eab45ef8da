//! A listener's TLS: certificates, what is negotiated, and who may connect.
//!
//! Opens no file: the TLS store reads the certificates and says what is wrong with them.

use std::path::PathBuf;

use serde_yaml::{Mapping, Value};

use super::defaults::{NumberRange, numbers};
use super::names::words;
use super::nearest::nearest;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::{Listener, ListenerAcme, Word, acme_names};

/// The cipher suites that can be named, and the version each is of. Written down here so that reading a file needs no TLS
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

/// Pairs and folders of one listener.
const CERTIFICATES_MAX: usize = 1000;
/// How TLS is terminated on a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Where certificates are; the first is for clients that name no host, or one that none is for.
    pub certificates: Vec<CertificateFiles>,
    /// Which names certificates are issued for; `None` is none.
    pub acme: Option<ListenerAcme>,
    /// The least version that is spoken.
    pub min_version: TlsVersion,
    /// Names of the suites to be used, as rustls has them; empty is all that it has.
    pub cipher_suites: Vec<String>,
    /// Whether clients are given tickets, by which they resume a session (RFC 8446 section 2.2, RFC 5077).
    pub session_tickets: bool,
    /// Whether clients show certificates.
    pub client_auth: ClientAuth,
    /// From the connection's begin to the end of its handshake, in milliseconds.
    pub handshake_timeout_ms: u64,
    /// Handshakes under way at once, over all workers.
    pub handshakes_max: usize,
    /// How often it is looked whether the files have changed, in milliseconds; 0 is never.
    pub watch_interval_ms: u64,
}

numbers! { Tls {
    // A few round trips, over a bad radio link; whoever takes longer is not coming.
    handshake_timeout_ms: u64 = 10_000, 100..=600_000;
    // Some 100 MB if all of them are slow; a core does a few thousand a second.
    handshakes_max: usize = 4096, 1..=1_000_000;
    // A renewed certificate is in use soon, at the price of a few calls to stat.
    watch_interval_ms: u64 = 10_000, 0..=86_400_000;
} rest {
    certificates: Vec::new(),
    acme: None,
    min_version: TlsVersion::V12,
    cipher_suites: Vec::new(),
    session_tickets: true,
    client_auth: ClientAuth::default(),
}}

/// Where certificates and their keys are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CertificateFiles {
    /// One certificate.
    Pair {
        /// PEM: the certificate, then those that lead to the root.
        cert: PathBuf,
        /// PEM: its key, not encrypted.
        key: PathBuf,
        /// DER: an OCSP response to be stapled.
        ocsp: Option<PathBuf>,
    },
    /// All pairs of a folder: NAME.pem or NAME.crt with NAME.key, or fullchain.pem with privkey.pem in folders below.
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

/// Whether clients show certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAuth {
    /// Whether they are asked for one.
    pub mode: ClientAuthMode,
    /// PEM: whose certificates are taken.
    pub ca_file: Option<PathBuf>,
}

/// Whether clients are asked for a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuthMode {
    /// They are not.
    #[default]
    Off,
    /// Who has none may connect; one that is shown must be good.
    Optional,
    /// Who has none may not connect.
    Required,
}

words!(ClientAuthMode {
    Off = "off",
    Optional = "optional",
    Required = "required",
});

impl Listener {
    /// Whether clients are asked for a certificate.
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
    tls.certificates = certificates(&mut fields, tls.acme.is_some());
    if let Some(version) = fields.get("min_version").and_then(|item| version(&item)) {
        tls.min_version = version;
    }
    if let Some(item) = fields.get("cipher_suites") {
        tls.cipher_suites = item.list(CIPHER_SUITES.len()).iter().filter_map(suite).collect();
    }
    tls.session_tickets = fields.boolean("session_tickets", tls.session_tickets);
    if let Some(mut inner) = fields.get("client_auth").map(|item| item.fields()) {
        tls.client_auth.mode = inner.one_of("mode", ClientAuthMode::Off);
        tls.client_auth.ca_file = inner.text("ca_file").map(PathBuf::from);
        inner.finish();
    }
    tls.read_numbers(&mut fields);
    fields.finish();
    Some(tls)
}

/// They may be left out where others are issued.
fn certificates(fields: &mut Fields<'_>, issued: bool) -> Vec<CertificateFiles> {
    let write = "[{cert: /path, key: /path}] or [{folder: /path}]";
    let given = if issued { fields.get("certificates") } else { fields.require("certificates", write) };
    let Some(item) = given else {
        return Vec::new();
    };
    if item.value.as_sequence().is_some_and(Vec::is_empty) && !issued {
        item.mistake(format!("no certificate is here; write {write}"));
    }
    item.list(CERTIFICATES_MAX).iter().filter_map(files).collect()
}

fn files(item: &Item<'_>) -> Option<CertificateFiles> {
    let mut fields = item.fields();
    let [folder, cert, key, ocsp] =
        ["folder", "cert", "key", "ocsp"].map(|name| fields.text(name).map(PathBuf::from));
    let read = match (folder, cert) {
        (Some(_), _) if key.is_some() || ocsp.is_some() => {
            fields.mistake("a folder has keys and OCSP responses by name; take key and ocsp out");
            None
        }
        (Some(_), Some(_)) => {
            fields.mistake("this is a folder and a file; write one of cert and folder");
            None
        }
        (Some(folder), None) => Some(CertificateFiles::Folder(folder)),
        // As HAProxy has it: both in one file.
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

/// Without quotes YAML takes it for a number.
pub(super) fn version(item: &Item<'_>) -> Option<TlsVersion> {
    let text = match item.value {
        Value::Number(number) => number.to_string(),
        other => other.as_str().unwrap_or_default().to_owned(),
    };
    let found = TlsVersion::ALL.iter().copied().find(|version| version.word() == text);
    if found.is_none() {
        item.mistake(match text.as_str() {
            "1.0" | "1.1" | "1" => format!("TLS {text} is broken (RFC 8996); write \"1.2\" or \"1.3\""),
            _ => "this is no version of TLS; write \"1.2\" or \"1.3\"".to_owned(),
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
