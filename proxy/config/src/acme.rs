//! Automatic certificates (ACME, RFC 8555): which authority issues them, and how sluice proves control of a name.
//!
//! Opens no file: the ACME keeper stores the account and the certificates.

use std::path::PathBuf;

use serde_yaml::Value;

use super::codec::{File, List, Optional, Or, Own, Table, keys, map, number, word};
use super::names::words;
use super::out::{Out, file, texts};
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::{Key, Shape};
use super::text;

const PRODUCTION: &str = "https://acme-v02.api.letsencrypt.org/directory";
const STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";
/// Maximum number of contacts.
const CONTACTS_MAX: usize = 10;
/// Maximum number of arguments of the hook.
const ARGUMENTS_MAX: usize = 100;
const DAY_MS: u64 = 86_400_000;

/// The ACME account and how certificates are ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acme {
    /// Contacts of the account, as URIs (`mailto:`).
    pub contacts: Vec<String>,
    /// The authority's directory.
    pub directory: AcmeDirectory,
    /// PEM: the CAs trusted for the authority's own TLS connection; `None` uses the system's CAs.
    pub ca_file: Option<PathBuf>,
    /// Folder of the account and certificates; `None` is a folder next to the services' state file.
    pub state_folder: Option<PathBuf>,
    /// The challenge that proves control of a name.
    pub challenge: AcmeChallenge,
    /// The command that changes DNS records, for `dns-01`.
    pub dns_hook: Option<DnsHook>,
    /// The existing account with the authority to bind the ACME account to.
    pub external_account: Option<ExternalAccount>,
    /// The certificate profile, if the authority offers several.
    pub profile: Option<String>,
    /// Days before expiry at which a certificate is renewed; 0 is a third of its lifetime.
    pub renew_before_days: u64,
    /// Delay before the first retry after a failure, in milliseconds. It doubles with each further failure.
    pub retry_first_ms: u64,
    /// Maximum back-off, in milliseconds.
    pub retry_max_ms: u64,
    /// Time limit for ordering one certificate, in milliseconds.
    pub order_timeout_ms: u64,
}

keys! { Acme {
    // A third of 90 days leaves a month to notice that renewal fails; a third of six days leaves two days.
    renew_before_days: 0, number(0..=365);
    // Authorities allow about five failures per hour and name.
    retry_first_ms: 60_000, number(100..=DAY_MS);
    // Four tries a day: a fixed problem is noticed soon, and authorities accept this rate.
    retry_max_ms: 21_600_000, number(100..=7 * DAY_MS);
    // Authorities validate from several places, one after the other when they are busy.
    order_timeout_ms: 300_000, number(1000..=DAY_MS);
    directory: AcmeDirectory::Production, DIRECTORY;
    ca_file: None, Optional(File);
    state_folder: None, Optional(File);
    challenge: AcmeChallenge::Http01, word();
    profile: None, Optional(PROFILE);
    dns_hook: None, Or("off", map());
    external_account: None, Optional(map());
} rest {
    contacts: Vec::new(),
}}

const DIRECTORY: Own<AcmeDirectory> =
    Own { read: directory, write: |directory| directory.word().into(), shape: || Shape::TEXT };

const PROFILE: Own<String> = Own {
    read: |item| item.text().map(str::to_owned),
    write: |profile| profile.as_str().into(),
    shape: || Shape::TEXT,
};

impl Acme {
    /// The same settings for another authority, without this authority's account.
    #[must_use]
    pub fn with_directory(&self, directory: AcmeDirectory) -> Self {
        if directory == self.directory {
            return self.clone();
        }
        Self { directory, external_account: None, profile: None, ..self.clone() }
    }
}

/// An authority, by its directory URL (RFC 8555 section 7.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcmeDirectory {
    /// Let's Encrypt.
    Production,
    /// Let's Encrypt's staging environment: its certificates are not trusted, and its rate limits are high.
    Staging,
    /// Another authority.
    At(String),
}

impl AcmeDirectory {
    /// The authority with this directory URL.
    pub fn of_url(url: &str) -> Self {
        match url {
            PRODUCTION => Self::Production,
            STAGING => Self::Staging,
            other => Self::At(other.to_owned()),
        }
    }

    /// The directory URL.
    pub fn url(&self) -> &str {
        match self {
            Self::Production => PRODUCTION,
            Self::Staging => STAGING,
            Self::At(url) => url,
        }
    }

    /// The keyword or URL that the configuration uses.
    pub fn word(&self) -> &str {
        match self {
            Self::Production => "production",
            Self::Staging => "staging",
            Self::At(url) => url,
        }
    }
}

/// How sluice proves control of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// With a request to port 80 of the name (RFC 8555 section 8.3).
    Http01,
    /// With a TLS connection to port 443 of the name (RFC 8737).
    TlsAlpn01,
    /// With a DNS record of the name (RFC 8555 section 8.4).
    Dns01,
}

words!(AcmeChallenge {
    Http01 = "http-01",
    TlsAlpn01 = "tls-alpn-01",
    Dns01 = "dns-01",
});

/// A command that creates and removes a DNS record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsHook {
    /// The program.
    pub command: PathBuf,
    /// Arguments before `present` or `cleanup`, the name and the value.
    pub arguments: Vec<String>,
    /// Time limit of the command, in milliseconds.
    pub timeout_ms: u64,
    /// Wait after the command until every name server has the record, in milliseconds.
    pub wait_ms: u64,
}

keys! { DnsHook {
    // The API of a provider takes seconds.
    timeout_ms: 60_000, number(100..=3_600_000);
    // The name servers of a zone synchronise within seconds; some providers take minutes.
    wait_ms: 10_000, number(0..=3_600_000);
    arguments: Vec::new(), List(ARGUMENTS_MAX, ARGUMENT);
} required {
    command: PathBuf::new(), "the path of a program", COMMAND;
}}

const ARGUMENT: Own<String> = Own {
    read: |item| item.any_text().map(str::to_owned),
    write: |argument| argument.as_str().into(),
    shape: || Shape::Text { least: 0 },
};

const COMMAND: Own<PathBuf> = Own { read: command, write: |path| file(path), shape: || Shape::TEXT };

/// An existing account, identified by what the authority issued (RFC 8555 section 7.3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The key identifier.
    pub key_id: String,
    /// File with the MAC key, in base64url.
    pub hmac_file: PathBuf,
}

keys! { ExternalAccount {
} required {
    key_id: String::new(), "the key identifier from the authority", PROFILE;
    hmac_file: PathBuf::new(), "a file with the key in base64url", File;
}}

/// `acme`: off, or a map.
pub(super) fn acme(root: &mut Fields<'_>) -> Option<Acme> {
    let item = root.get("acme").filter(|item| !item.is_off())?;
    let mut acme = Acme::default();
    let mut fields = item.fields();
    acme.contacts = contacts(&mut fields);
    acme.read_keys(&mut fields);
    terms(&mut fields);
    fields.finish();
    Some(acme)
}

/// `acme` as values.
pub(super) fn write(acme: Option<&Acme>) -> Value {
    let Some(acme) = acme else {
        return Value::from("off");
    };
    let mut out = Out::default();
    out.put("contacts", texts(&acme.contacts));
    // `acme` cannot be read without it.
    out.put("terms_agreed", true);
    acme.write_keys(&mut out);
    out.done()
}

/// The shape of `acme`.
pub(super) fn shape() -> Shape {
    let mut keys = vec![
        Key::required("terms_agreed", Shape::OneOf(vec![true.into()])),
        Key::optional("email", Shape::TEXT),
        Key::optional("contacts", Shape::list(Shape::TEXT, CONTACTS_MAX)),
    ];
    keys.extend(Acme::keys());
    Shape::Map(keys).or_off()
}

/// RFC 8555 section 7.3: creating an account requires agreement to the terms of service.
fn terms(fields: &mut Fields<'_>) {
    let write = "true, once you have read the authority's terms of service";
    if let Some(item) = fields.require("terms_agreed", write)
        && item.boolean() == Some(false)
    {
        item.mistake(format!("no authority issues certificates without it; write {write}"));
    }
}

fn contacts(fields: &mut Fields<'_>) -> Vec<String> {
    let mut contacts = Vec::new();
    if let Some(email) = fields.get("email").and_then(|item| uri(&item, "mailto:")) {
        contacts.push(email);
    }
    if let Some(item) = fields.get("contacts") {
        contacts.extend(item.list(CONTACTS_MAX).iter().filter_map(|item| uri(item, "")));
    }
    contacts
}

/// A URI of visible ASCII, with `scheme` prepended.
fn uri(item: &Item<'_>, scheme: &str) -> Option<String> {
    let text = item.text()?;
    let uri = format!("{scheme}{text}");
    let is_visible = uri.bytes().all(|byte| byte.is_ascii_graphic());
    let is_address = uri.strip_prefix("mailto:").is_none_or(|address| address.contains('@'));
    if is_visible && is_address && uri.contains(':') {
        return Some(uri);
    }
    let write = if scheme.is_empty() { "mailto:ops@example.com" } else { "ops@example.com" };
    item.mistake(format!("{} is not an address; write one such as {write}", quote(text)));
    None
}

fn directory(item: &Item<'_>) -> Option<AcmeDirectory> {
    match item.text()? {
        "production" => Some(AcmeDirectory::Production),
        "staging" => Some(AcmeDirectory::Staging),
        // RFC 8555 section 6.1 allows https only.
        url if url
            .strip_prefix("https://")
            .is_some_and(|rest| text::url_path(&format!("/{rest}"), true).is_ok() && !rest.is_empty()) =>
        {
            Some(AcmeDirectory::At(url.to_owned()))
        }
        other => {
            let message = format!(
                "{} is not an ACME directory; write production, staging or an https URL",
                quote(other)
            );
            item.mistake(message);
            None
        }
    }
}

fn command(item: &Item<'_>) -> Option<PathBuf> {
    let command = item.text()?;
    if !command.starts_with('/') {
        item.mistake(format!("{} is not an absolute path; write /path/to/program", quote(command)));
    }
    Some(PathBuf::from(command))
}
