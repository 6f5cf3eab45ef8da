//! Which names a listener has certificates issued for: those written down, and those that somebody allows when a client
//! asks for them.

use crate::Mistake;
use std::collections::BTreeMap;

use super::codec::{Codec, Or, Own, keys, map, number};
use super::out::texts;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::{AcmeDirectory, Address, text};

/// Names of one listener; each has a certificate of its own.
const NAMES_MAX: usize = 1000;
const DAY_MS: u64 = 86_400_000;

/// What a listener has issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerAcme {
    /// Names, in lower case, some with `*.` in front; each has a certificate of its own.
    pub names: Vec<String>,
    /// How further names are got, when a client first asks for them.
    pub on_demand: Option<OnDemand>,
    /// Names that another authority than the configuration's issues for. No key: a deployed service asks for it.
    pub directories: BTreeMap<String, AcmeDirectory>,
}

/// Certificates for names that nobody has written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDemand {
    /// Who is asked whether a name may have one.
    pub ask_url: AskUrl,
    /// How long it may take to say so, in milliseconds.
    pub timeout_ms: u64,
    /// After how long a name that may not is asked about again, in milliseconds.
    pub ask_again_ms: u64,
    /// Names that get one.
    pub names_max: usize,
    /// How the name is put. No key: a deployed service asks otherwise than the configuration.
    pub question: Question,
}

/// How somebody is asked whether a name may have a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Question {
    /// By `?domain=NAME`, as Caddy asks.
    #[default]
    Domain,
    /// By `?host=NAME`, as kamal-proxy asks.
    Host,
    /// By `?host=NAME` and the name as Host: kamal-proxy asks the application that is to be served.
    OwnHost,
}

keys! { OnDemand {
    // It is on this host or near it, and looks into a table.
    timeout_ms: 5000, number(10..=600_000);
    // A name that was just added is served soon, and scanners cost one question a minute for each name.
    ask_again_ms: 60_000, number(100..=DAY_MS);
    // Authorities issue some hundred a week for a domain; a certificate takes some 10 KB.
    names_max: 1000, number(1..=100_000);
} required {
    ask_url: AskUrl::default(), "http://host:port/path", ASK_URL;
} rest {
    question: Question::Domain,
}}

keys! { ListenerAcme, settle has_some {
    names: Vec::new(), NAMES;
    on_demand: None, Or("off", map());
} rest {
    directories: BTreeMap::new(),
}}

const ASK_URL: Own<AskUrl> =
    Own { read: ask_url, write: |url| url.to_string().into(), shape: || Shape::TEXT };

const NAMES: Own<Vec<String>> = Own {
    read: |item| Some(names(item)),
    write: |names| texts(names),
    shape: || Shape::list(Shape::TEXT, NAMES_MAX),
};

/// The URL that is asked whether a name may have a certificate, without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskUrl {
    /// Where it listens; never a unix socket.
    pub address: Address,
    /// What is asked for.
    pub path: String,
}

impl Default for AskUrl {
    fn default() -> Self {
        Self { address: Address::Name(String::new(), 0), path: "/".to_owned() }
    }
}

impl AskUrl {
    /// A URL with its path and query as they are written.
    ///
    /// # Errors
    /// Why nobody can be asked there, and what to write.
    pub fn parse(url: &str) -> Result<Self, Mistake> {
        let Some(rest) = url.strip_prefix("http://") else {
            let message =
                format!("{} is not asked by plain HTTP; write http://127.0.0.1:port/path", quote(url));
            return Err(message.into());
        };
        let (authority, path) = rest.find('/').map_or((rest, "/"), |at| rest.split_at(at));
        let address = authority.parse::<Address>()?;
        if matches!(address, Address::Unix(_)) {
            return Err("a unix socket cannot be the host of a URL; write host:port".into());
        }
        Ok(Self { address, path: path.to_owned() })
    }
}

impl std::fmt::Display for AskUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.address, self.path)
    }
}

/// `acme` of a listener's `tls`: off, or a map.
pub(super) fn listener(tls: &mut Fields<'_>) -> Option<ListenerAcme> {
    let item = tls.get("acme").filter(|item| !item.is_off())?;
    map().read(&item)
}

fn names(item: &Item<'_>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for item in item.list(NAMES_MAX) {
        match name(&item) {
            Some(name) if names.contains(&name) => item.mistake(format!("{} is here twice", quote(&name))),
            found => names.extend(found),
        }
    }
    names
}

/// Something is issued.
fn has_some(acme: &mut ListenerAcme, fields: &mut Fields<'_>) {
    let lists_none =
        fields.get("names").is_none_or(|item| item.value.as_sequence().is_none_or(Vec::is_empty));
    if lists_none && acme.on_demand.is_none() && !fields.is_broken() {
        fields.mistake("no name is here; write names: [example.com], or on_demand");
    }
}

fn name(item: &Item<'_>) -> Option<String> {
    let name = item.text()?.to_ascii_lowercase();
    if is_issuable(name.strip_prefix("*.").unwrap_or(&name)) {
        return Some(name);
    }
    let why = if name.parse::<std::net::IpAddr>().is_ok() { "is an address" } else { "is not a host name" };
    item.mistake(format!("{} {why}; write example.com or \"*.example.com\"", quote(&name)));
    None
}

/// Whether an authority could issue a certificate for it, and a file could be named after it: lower case, letters,
/// digits and inner hyphens, and no address.
pub fn is_issuable(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let label = |label: &str| label.bytes().all(plain) && !label.starts_with('-') && !label.ends_with('-');
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    text::is_host_name(name) && name.split('.').all(label) && !name.rsplit('.').next().is_some_and(is_number)
}

fn ask_url(item: &Item<'_>) -> Option<AskUrl> {
    let url = AskUrl::parse(item.text()?).map_err(|message| item.mistake(message)).ok()?;
    // The query is ours.
    text::url_path(&url.path, false).map_err(|message| item.mistake(message)).ok()?;
    Some(url)
}
