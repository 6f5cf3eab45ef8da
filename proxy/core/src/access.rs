//! Decides which clients may send requests. Built once from the configuration; the lists of files may be replaced.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use sluice_config as config;

use crate::router::{is_below, normalised};
use crate::small_file;

/// Networks that do not overlap, in order, so that one is found by binary search.
#[derive(Debug, Default)]
struct Networks(Vec<IpNet>);

impl Networks {
    fn new(networks: &[IpNet]) -> Self {
        let mut networks = IpNet::aggregate(&networks.to_vec());
        networks.sort();
        Self(networks)
    }

    fn contains(&self, client: &IpAddr) -> bool {
        let after = self.0.partition_point(|network| network.network() <= *client);
        after.checked_sub(1).is_some_and(|last| self.0[last].contains(client))
    }
}

/// What is wrong with a file of networks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String)]
pub struct ListError(String);

/// Files of networks, by their path.
pub type NetworkLists = BTreeMap<PathBuf, Arc<NetworkList>>;

/// The networks of a file, a line each, which are replaced when the file changes.
#[derive(Debug)]
pub struct NetworkList {
    file: PathBuf,
    networks: ArcSwap<Networks>,
    seen: Mutex<Sighting>,
}

/// What the file was when it was looked at.
#[derive(Debug, Default)]
struct Sighting {
    /// When it was read.
    read: Stamp,
    last: Stamp,
    /// How often it had changed since the time before, in a row.
    changes: u32,
    /// What was said of it last.
    said: Option<ListError>,
}

/// Why a file was not taken.
enum ListFault {
    /// It may be readable the next time.
    Unreadable(io::Error),
    /// It stays wrong until it changes.
    Wrong(String),
}

impl From<ListFault> for ListError {
    fn from(fault: ListFault) -> Self {
        match fault {
            ListFault::Unreadable(error) => error.to_string().into(),
            ListFault::Wrong(what) => what.into(),
        }
    }
}

/// A file that changes each time is read after so many looks: somebody may be writing it, but not for ever.
const CHANGES_MAX: u32 = 5;

/// Changes with the content of a file, with its permissions, and when another one takes its place.
type Stamp = Option<(u64, u64, u64, [i64; 4])>;

/// Maximum bytes of a file.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of networks of a file.
const NETWORKS_MAX: usize = 500_000;

fn stamp(file: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(file).ok()?;
    let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
    Some((found.dev(), found.ino(), found.len(), times))
}

impl NetworkList {
    /// Reads a file. Blocks.
    ///
    /// # Errors
    /// Why it cannot be used, with the line.
    pub fn load(file: &Path) -> Result<Self, ListError> {
        let read = stamp(file);
        let networks = ArcSwap::from_pointee(read_networks(file)?);
        Ok(Self {
            file: file.to_owned(),
            networks,
            seen: Mutex::new(Sighting { read, last: read, ..Sighting::default() }),
        })
    }

    /// Its path.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Reads the file again if it has changed, and has stayed the same since it was looked at last. After a mistake, the
    /// networks before stay. Returns how many there are now. Blocks.
    ///
    /// # Errors
    /// Why it cannot be used, if that was not said before.
    pub fn refresh(&self) -> Result<Option<usize>, ListError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(&self.file);
        seen.changes = if now == seen.last { 0 } else { seen.changes + 1 };
        seen.last = now;
        if now == seen.read || (1..CHANGES_MAX).contains(&seen.changes) {
            return Ok(None);
        }
        match read_networks(&self.file) {
            Ok(networks) => {
                let count = networks.0.len();
                self.networks.store(Arc::new(networks));
                (seen.read, seen.said) = (now, None);
                Ok(Some(count))
            }
            Err(fault) => {
                if matches!(fault, ListFault::Wrong(_)) {
                    seen.read = now;
                }
                let error = ListError::from(fault);
                if seen.said.replace(error.clone()).is_some_and(|said| said == error) {
                    Ok(None)
                } else {
                    Err(error)
                }
            }
        }
    }

    fn contains(&self, client: &IpAddr) -> bool {
        self.networks.load().contains(client)
    }
}

/// An address or a network in each line; what follows a # or a ; is a comment.
fn read_networks(file: &Path) -> Result<Networks, ListFault> {
    let text = small_file::read_text(file, FILE_BYTES_MAX).map_err(ListFault::Unreadable)?;
    let mut networks = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let written = line.split(['#', ';']).next().unwrap_or_default().trim();
        if written.is_empty() {
            continue;
        }
        let network = config::network_of(written);
        let wrong =
            || format!("line {}: {written:?} is not an address or a network such as 10.0.0.0/8", number + 1);
        networks.push(network.ok_or_else(wrong).map_err(ListFault::Wrong)?);
        if networks.len() > NETWORKS_MAX {
            return Err(ListFault::Wrong(format!("more than {NETWORKS_MAX} networks")));
        }
    }
    Ok(Networks::new(&networks))
}

/// The clients that one rule lets through.
#[derive(Debug)]
pub struct Gate {
    /// `None` allows all.
    allow: Option<Networks>,
    deny: Networks,
    allow_lists: Box<[Arc<NetworkList>]>,
    deny_lists: Box<[Arc<NetworkList>]>,
}

impl Gate {
    /// Prepares a rule.
    pub fn new(access: &config::Access, lists: &NetworkLists) -> Self {
        let of =
            |files: &[PathBuf]| files.iter().filter_map(|file| lists.get(file)).map(Arc::clone).collect();
        let is_open = access.allow.is_empty() && access.allow_files.is_empty();
        Self {
            allow: (!is_open).then(|| Networks::new(&access.allow)),
            deny: Networks::new(&access.deny),
            allow_lists: of(&access.allow_files),
            deny_lists: of(&access.deny_files),
        }
    }

    /// Whether a client, whose address is in its canonical form, may pass.
    pub fn lets_through(&self, client: &IpAddr) -> bool {
        let has = |list: &Arc<NetworkList>| list.contains(client);
        let is_denied = self.deny.contains(client) || self.deny_lists.iter().any(has);
        !is_denied
            && self
                .allow
                .as_ref()
                .is_none_or(|allow| allow.contains(client) || self.allow_lists.iter().any(has))
    }
}

/// Rules that hold before any route is looked for.
#[derive(Debug)]
pub struct Gates(Vec<ScopedGate>);

#[derive(Debug)]
struct ScopedGate {
    listeners: Vec<String>,
    /// In lower case.
    hosts: Vec<String>,
    /// In their normal form.
    prefixes: Vec<Vec<u8>>,
    gate: Gate,
}

impl Gates {
    /// Prepares the rules; `None` if there are none.
    pub fn new(rules: &[config::AccessRule], lists: &NetworkLists) -> Option<Self> {
        let scoped = |rule: &config::AccessRule| ScopedGate {
            listeners: rule.listeners.clone(),
            hosts: rule.hosts.clone(),
            prefixes: rule.path_prefix.iter().map(|path| normalised(path.as_bytes()).into_owned()).collect(),
            gate: Gate::new(&rule.access, lists),
        };
        (!rules.is_empty()).then(|| Self(rules.iter().map(scoped).collect()))
    }

    /// Whether all rules that apply let a client through. `host` is without a port; in a tunnel, it is the name that
    /// the client's TLS handshake asks for, or empty. `path` is as sent, without the query; a tunnel has none.
    pub fn let_through(&self, listener: &str, host: &[u8], path: Option<&[u8]>, client: &IpAddr) -> bool {
        let dots = host.iter().rev().take_while(|byte| **byte == b'.').count();
        let host = &host[..host.len() - dots];
        let path = path.map(normalised);
        let mut applying = self.0.iter().filter(|rule| rule.applies(listener, host, path.as_deref()));
        applying.all(|rule| rule.gate.lets_through(client))
    }
}

impl ScopedGate {
    fn applies(&self, listener: &str, host: &[u8], path: Option<&[u8]>) -> bool {
        let is_here = self.listeners.is_empty() || self.listeners.iter().any(|name| name == listener);
        let is_below = |path| self.prefixes.iter().any(|prefix| is_below(path, prefix));
        let is_place = self.prefixes.is_empty() || path.is_some_and(is_below);
        is_here
            && is_place
            && (self.hosts.is_empty() || self.hosts.iter().any(|pattern| is_host(pattern, host)))
    }
}

/// Whether a host, in any case and without a trailing dot, is the one of a pattern in lower case.
fn is_host(pattern: &str, host: &[u8]) -> bool {
    let pattern = pattern.strip_suffix('.').unwrap_or(pattern);
    match pattern.strip_prefix('*') {
        // With its dot, and not alone.
        Some(suffix) => host
            .len()
            .checked_sub(suffix.len())
            .is_some_and(|rest| rest > 0 && host[rest..].eq_ignore_ascii_case(suffix.as_bytes())),
        None => host.eq_ignore_ascii_case(pattern.as_bytes()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use ipnet::{Ipv4Net, Ipv6Net};
    use proptest::prelude::*;

    use super::*;

    fn networks(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn access(allow: &[&str], deny: &[&str]) -> config::Access {
        config::Access { allow: networks(allow), deny: networks(deny), ..config::Access::default() }
    }

    #[test]
    fn a_denied_client_stays_denied_although_it_is_allowed() {
        let gate = Gate::new(&access(&["10.0.0.0/8", "2001:db8::/32"], &["10.1.0.0/16"]), &BTreeMap::new());
        for (client, passes) in [
            ("10.0.0.1", true),
            ("10.1.0.1", false),
            ("11.0.0.1", false),
            ("2001:db8::1", true),
            ("::1", false),
        ] {
            assert_eq!(gate.lets_through(&client.parse().unwrap()), passes, "{client}");
        }
    }

    #[test]
    fn every_rule_that_applies_must_let_a_client_through() {
        let rule = |listeners: &[&str], hosts: &[&str], access| config::AccessRule {
            listeners: listeners.iter().map(|name| (*name).to_owned()).collect(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            path_prefix: Vec::new(),
            access,
        };
        let rules = [
            rule(&[], &[], access(&[], &["203.0.113.0/24"])),
            rule(&["private"], &[], access(&["10.0.0.0/8"], &[])),
            rule(&[], &["admin.example", "*.in.example"], access(&["10.0.0.0/8"], &[])),
        ];
        let gates = Gates::new(&rules, &BTreeMap::new()).unwrap();
        for (listener, host, client, passes) in [
            ("main", "example", "192.0.2.1", true),
            ("main", "example", "203.0.113.1", false),
            ("private", "example", "192.0.2.1", false),
            ("private", "", "10.0.0.1", true),
            ("main", "Admin.Example.", "192.0.2.1", false),
            ("main", "admin.example", "10.0.0.1", true),
            ("main", "a.IN.example", "192.0.2.1", false),
            ("main", ".in.example", "192.0.2.1", true),
            ("main", "in.example", "192.0.2.1", true),
            ("main", "xin.example", "192.0.2.1", true),
            ("main", "admin.example.com", "192.0.2.1", true),
        ] {
            let found = gates.let_through(listener, host.as_bytes(), Some(b"/"), &client.parse().unwrap());
            assert_eq!(found, passes, "{listener} {host} {client}");
        }
    }

    #[test]
    fn a_rule_of_a_prefix_holds_in_every_spelling_and_nowhere_else() {
        let rule = config::AccessRule {
            path_prefix: vec!["/admin".to_owned(), "/metrics/".to_owned()],
            access: access(&["10.0.0.0/8"], &[]),
            ..config::AccessRule::default()
        };
        let gates = Gates::new(&[rule], &BTreeMap::new()).unwrap();
        let client = "192.0.2.1".parse().unwrap();
        for (path, passes) in [
            (Some("/admin"), false),
            (Some("/admin/x"), false),
            (Some("//%61dmin"), false),
            (Some("/x/../admin/y"), false),
            (Some("/metrics/x"), false),
            (Some("/administrator"), true),
            (Some("/"), true),
            (Some("*"), true),
            (None, true),
        ] {
            assert_eq!(gates.let_through("main", b"h", path.map(str::as_bytes), &client), passes, "{path:?}");
        }
    }

    #[test]
    fn a_list_follows_its_file_once_that_is_written() {
        let file = std::env::temp_dir().join(format!("sluice-networks-{}", std::process::id()));
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write("# offices\n10.0.0.0/8 ; one\n\n2001:db8::/32\n192.0.2.1\n");
        let list = Arc::new(NetworkList::load(&file).unwrap());
        let rule = config::Access { deny_files: vec![file.clone()], ..config::Access::default() };
        let gate = Gate::new(&rule, &BTreeMap::from([(file.clone(), Arc::clone(&list))]));
        let passes = |client: &str| gate.lets_through(&client.parse().unwrap());
        assert!(!passes("10.1.1.1") && !passes("192.0.2.1") && passes("192.0.2.2"));
        assert_eq!(list.refresh(), Ok(None));
        write("192.0.2.2\n");
        assert_eq!((list.refresh(), list.refresh()), (Ok(None), Ok(Some(1))));
        assert!(passes("10.1.1.1") && !passes("192.0.2.2"));
        write("192.0.2.2\nnonsense\n");
        assert_eq!(list.refresh(), Ok(None));
        let error = list.refresh().unwrap_err().to_string();
        assert!(error.starts_with("line 2: \"nonsense\" is not an address"), "{error}");
        assert_eq!(list.refresh(), Ok(None));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(list.refresh(), Ok(None));
        assert!(list.refresh().is_err() && !passes("192.0.2.2"), "what was known stays");
        assert_eq!(list.refresh(), Ok(None), "it is said once");
        for number in 1..=CHANGES_MAX {
            write(&"192.0.2.3\n".repeat(number as usize));
            let wanted = if number == CHANGES_MAX { Ok(Some(1)) } else { Ok(None) };
            assert_eq!(list.refresh(), wanted, "a file that is always being written, look {number}");
        }
        std::fs::remove_file(&file).unwrap();
    }

    fn network() -> impl Strategy<Value = IpNet> {
        // Few distinct addresses, so that networks meet and contain each other.
        let v4 = (0..=32u8, any::<[bool; 6]>()).prop_map(|(length, bits)| {
            let address =
                bits.iter().enumerate().fold(0u32, |sum, (at, bit)| sum | (u32::from(*bit) << (at * 6)));
            Ipv4Net::new(Ipv4Addr::from(address), length).unwrap().trunc().into()
        });
        let v6 = (0..=128u8, any::<u8>()).prop_map(|(length, byte)| {
            Ipv6Net::new(Ipv6Addr::from(u128::from(byte) << 60), length).unwrap().trunc().into()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn the_search_agrees_with_a_scan(list in prop::collection::vec(network(), 0..12), client in network()) {
            let client = client.addr();
            let scanned = list.iter().any(|network| network.contains(&client));
            prop_assert_eq!(Networks::new(&list).contains(&client), scanned);
        }
    }
}
