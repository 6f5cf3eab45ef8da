//! Which names a listener obtains certificates for: listed names, and names that an endpoint approves when a client
//! first asks for them.

use std::collections::BTreeMap;

use super::codec::{Codec, Or, Own, keys, map, number};
use super::out::texts;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::{AcmeDirectory, HttpUrl, text};

/// Maximum number of names of one listener; each has its own certificate.
const NAMES_MAX: usize = 1000;
const DAY_MS: u64 = 86_400_000;

/// The certificates that a listener obtains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerAcme {
    /// Names in lower case, possibly with a leading `*.`; each has its own certificate.
    pub names: Vec<String>,
    /// How further names are approved when a client first asks for them.
    pub on_demand: Option<OnDemand>,
    /// Names that use another authority than the configured one. Not a key: set by deployed services.
    pub directories: BTreeMap<String, AcmeDirectory>,
}

/// On-demand certificates: for names that are not listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnDemand {
    /// The URL that is asked whether a name may have a certificate.
    pub ask_url: HttpUrl,
    /// Time limit of that request, in milliseconds.
    pub timeout_ms: u64,
    /// After a refusal, the time until the same name may be asked about again, in milliseconds.
    pub ask_again_ms: u64,
    /// Maximum number of names that get a certificate.
    pub names_max: usize,
    /// The form of the request. Not a key: deployed services use another form than the configuration.
    pub question: Question,
}

/// The form of the request that asks whether a name may have a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Question {
    /// `?domain=NAME`, as in Caddy.
    #[default]
    Domain,
    /// `?host=NAME`, as in kamal-proxy.
    Host,
    /// `?host=NAME` with the name as Host: kamal-proxy asks the deployed application itself.
    OwnHost,
}

keys! { OnDemand {
    // The URL is on this host or near it, and looks up a table.
    timeout_ms: 5000, number(10..=600_000);
    // A newly added name is served soon, and scanners cost at most one request a minute for each name.
    ask_again_ms: 60_000, number(100..=DAY_MS);
    // Authorities issue a few hundred certificates a week for a domain; a certificate takes about 10 KB.
    names_max: 1000, number(1..=100_000);
} required {
    ask_url: HttpUrl::here(0, "/"), "http://host:port/path", ASK_URL;
} rest {
    question: Question::Domain,
}}

keys! { ListenerAcme, settle has_some {
    names: Vec::new(), NAMES;
    on_demand: None, Or("off", map());
} rest {
    directories: BTreeMap::new(),
}}

const ASK_URL: Own<HttpUrl> =
    Own { read: ask_url, write: |url| url.to_string().into(), shape: || Shape::TEXT };

const NAMES: Own<Vec<String>> = Own {
    read: |item| Some(names(item)),
    write: |names| texts(names),
    shape: || Shape::list(Shape::TEXT, NAMES_MAX),
};

/// `acme` of a listener's `tls`: off, or a map.
pub(super) fn listener(tls: &mut Fields<'_>) -> Option<ListenerAcme> {
    let item = tls.get("acme").filter(|item| !item.is_off())?;
    map().read(&item)
}

fn names(item: &Item<'_>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for item in item.list(NAMES_MAX) {
        match name(&item) {
            Some(name) if names.contains(&name) => item.mistake(format!("{} is listed twice", quote(&name))),
            found => names.extend(found),
        }
    }
    names
}

/// Requires at least one name or `on_demand`.
fn has_some(acme: &mut ListenerAcme, fields: &mut Fields<'_>) {
    let lists_none =
        fields.get("names").is_none_or(|item| item.value.as_sequence().is_none_or(Vec::is_empty));
    if lists_none && acme.on_demand.is_none() && !fields.is_broken() {
        fields.mistake("no name is given; write names: [example.com], or on_demand");
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

/// Whether an authority could issue a certificate for the name and a file could be named after it: lower case, letters,
/// digits and inner hyphens, and not an IP address.
pub fn is_issuable(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let label = |label: &str| label.bytes().all(plain) && !label.starts_with('-') && !label.ends_with('-');
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    text::is_host_name(name) && name.split('.').all(label) && !name.rsplit('.').next().is_some_and(is_number)
}

fn ask_url(item: &Item<'_>) -> Option<HttpUrl> {
    let url = HttpUrl::parse(item.text()?, "/").map_err(|message| item.mistake(message)).ok()?;
    // sluice adds the query.
    text::url_path(&url.path, false).map_err(|message| item.mistake(message)).ok()?;
    Some(url)
}
