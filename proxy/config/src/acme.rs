//! Certificates by themselves (ACME, RFC 8555): which authority issues them, and how it is shown that a name is ours.
//!
//! Opens no file: the ACME keeper keeps the account and the certificates.

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
/// Addresses that an authority may write to.
const CONTACTS_MAX: usize = 10;
/// Arguments of the hook.
const ARGUMENTS_MAX: usize = 100;
const DAY_MS: u64 = 86_400_000;

/// Whose certificates, and how they are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acme {
    /// Where the authority may write to, as URIs (`mailto:`).
    pub contacts: Vec<String>,
    /// The authority.
    pub directory: AcmeDirectory,
    /// PEM: who vouches for the authority's own address; `None` is whom this host trusts.
    pub ca_file: Option<PathBuf>,
    /// Where account and certificates are kept; `None` is a folder beside the state of services.
    pub state_folder: Option<PathBuf>,
    /// How it is shown that a name is ours.
    pub challenge: AcmeChallenge,
    /// The command that changes DNS records.
    pub dns_hook: Option<DnsHook>,
    /// The account with the authority that ours is to belong to.
    pub external_account: Option<ExternalAccount>,
    /// The kind of certificate, where an authority has several.
    pub profile: Option<String>,
    /// Days before its end that a certificate is renewed; 0 is a third of its lifetime.
    pub renew_before_days: u64,
    /// How long after the first failure the next try is, in milliseconds; then twice as long each time.
    pub retry_first_ms: u64,
    /// The longest that it becomes.
    pub retry_max_ms: u64,
    /// How long getting one certificate may take, in milliseconds.
    pub order_timeout_ms: u64,
}

keys! { Acme {
    // A third of 90 days leaves a month to notice that it does not work; a third of six days leaves two.
    renew_before_days: 0, number(0..=365);
    // Authorities allow some five failures an hour for a name.
    retry_first_ms: 60_000, number(100..=DAY_MS);
    // Four tries a day: whoever has mended it does not wait for long, and no authority minds.
    retry_max_ms: 21_600_000, number(100..=7 * DAY_MS);
    // Authorities look from several places, one after the other when they are busy.
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
    /// The same with another authority, which knows nothing of an account with this one.
    #[must_use]
    pub fn with_directory(&self, directory: AcmeDirectory) -> Self {
        if directory == self.directory {
            return self.clone();
        }
        Self { directory, external_account: None, profile: None, ..self.clone() }
    }
}

/// An authority, by the URL at which it says where everything is (RFC 8555 section 7.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcmeDirectory {
    /// Let's Encrypt.
    Production,
    /// Let's Encrypt's for tests: what it issues is trusted by nobody, and its limits are wide.
    Staging,
    /// Another one.
    At(String),
}

impl AcmeDirectory {
    /// The authority of a URL.
    pub fn of_url(url: &str) -> Self {
        match url {
            PRODUCTION => Self::Production,
            STAGING => Self::Staging,
            other => Self::At(other.to_owned()),
        }
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        match self {
            Self::Production => PRODUCTION,
            Self::Staging => STAGING,
            Self::At(url) => url,
        }
    }

    /// The word or URL that the configuration has.
    pub fn word(&self) -> &str {
        match self {
            Self::Production => "production",
            Self::Staging => "staging",
            Self::At(url) => url,
        }
    }
}

/// How it is shown that a name is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// By a request to port 80 of the name (RFC 8555 section 8.3).
    Http01,
    /// By a TLS connection to port 443 of the name (RFC 8737).
    TlsAlpn01,
    /// By a DNS record of the name (RFC 8555 section 8.4).
    Dns01,
}

words!(AcmeChallenge {
    Http01 = "http-01",
    TlsAlpn01 = "tls-alpn-01",
    Dns01 = "dns-01",
});

/// A command that makes a DNS record and takes it out again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsHook {
    /// The program.
    pub command: PathBuf,
    /// What comes before `present` or `cleanup`, the name and the value.
    pub arguments: Vec<String>,
    /// How long it may take, in milliseconds.
    pub timeout_ms: u64,
    /// How long it then takes until everybody sees the record, in milliseconds.
    pub wait_ms: u64,
}

keys! { DnsHook {
    // The API of a provider takes seconds.
    timeout_ms: 60_000, number(100..=3_600_000);
    // The servers of a zone follow one another within seconds; some providers take minutes.
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

/// An account that is there already, by what the authority has given (RFC 8555 section 7.3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Which account.
    pub key_id: String,
    /// File with the key, in base64url.
    pub hmac_file: PathBuf,
}

keys! { ExternalAccount {
} required {
    key_id: String::new(), "what the authority has given", PROFILE;
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

/// `acme`, as values.
pub(super) fn write(acme: Option<&Acme>) -> Value {
    let Some(acme) = acme else {
        return Value::from("off");
    };
    let mut out = Out::default();
    out.put("contacts", texts(&acme.contacts));
    // Nothing is read without it.
    out.put("terms_agreed", true);
    acme.write_keys(&mut out);
    out.done()
}

/// What may stand there.
pub(super) fn shape() -> Shape {
    let mut keys = vec![
        Key::required("terms_agreed", Shape::OneOf(vec![true.into()])),
        Key::optional("email", Shape::TEXT),
        Key::optional("contacts", Shape::list(Shape::TEXT, CONTACTS_MAX)),
    ];
    keys.extend(Acme::keys());
    Shape::Map(keys).or_off()
}

/// RFC 8555 section 7.3: whoever makes an account says that he agrees.
fn terms(fields: &mut Fields<'_>) {
    let write = "true, once you have read the authority's terms of service";
    if let Some(item) = fields.require("terms_agreed", write)
        && item.boolean() == Some(false)
    {
        item.mistake(format!("no authority issues anything then; write {write}"));
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

/// A URI of visible ASCII, `scheme` put in front.
fn uri(item: &Item<'_>, scheme: &str) -> Option<String> {
    let text = item.text()?;
    let uri = format!("{scheme}{text}");
    let is_visible = uri.bytes().all(|byte| byte.is_ascii_graphic());
    let is_address = uri.strip_prefix("mailto:").is_none_or(|address| address.contains('@'));
    if is_visible && is_address && uri.contains(':') {
        return Some(uri);
    }
    let write = if scheme.is_empty() { "mailto:ops@example.com" } else { "ops@example.com" };
    item.mistake(format!("{} is no address; write one such as {write}", quote(text)));
    None
}

fn directory(item: &Item<'_>) -> Option<AcmeDirectory> {
    match item.text()? {
        "production" => Some(AcmeDirectory::Production),
        "staging" => Some(AcmeDirectory::Staging),
        // RFC 8555 section 6.1: over https only.
        url if url
            .strip_prefix("https://")
            .is_some_and(|rest| text::url_path(&format!("/{rest}"), true).is_ok() && !rest.is_empty()) =>
        {
            Some(AcmeDirectory::At(url.to_owned()))
        }
        other => {
            let message =
                format!("{} is no authority; write production, staging or an https URL", quote(other));
            item.mistake(message);
            None
        }
    }
}

fn command(item: &Item<'_>) -> Option<PathBuf> {
    let command = item.text()?;
    if !command.starts_with('/') {
        item.mistake(format!("{} is no path from the root; write /path/to/program", quote(command)));
    }
    Some(PathBuf::from(command))
}
