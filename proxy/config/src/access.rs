//! `access`: which clients may send requests.

use std::path::PathBuf;

use ipnet::IpNet;

use super::codec::{File, List, Own, Table, checked, keys, lowered};
use super::general::NETWORK;
use super::out::Out;
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::text;

/// Maximum number of networks of one list. A request looks one up by binary search.
const NETWORKS_MAX: usize = 100_000;
/// Maximum number of hosts or listeners of one rule.
const NAMES_MAX: usize = 1000;
/// Maximum number of files of one list.
const FILES_MAX: usize = 100;
/// Maximum number of rules; a request is compared with all of them.
pub(super) const RULES_MAX: usize = 1000;

/// The clients that are let through: those that `deny` does not contain, and of these only those in `allow`, unless
/// that is empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// Networks of the only clients; empty is any.
    pub allow: Vec<IpNet>,
    /// Networks of the clients that are refused.
    pub deny: Vec<IpNet>,
    /// Files with further networks that are allowed, a line each.
    pub allow_files: Vec<PathBuf>,
    /// The same for those that are refused.
    pub deny_files: Vec<PathBuf>,
}

impl Access {
    /// All files.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let allow = self.allow_files.iter().map(|file| ("allow_files", file));
        allow.chain(self.deny_files.iter().map(|file| ("deny_files", file)))
    }
}

/// A rule that no route avoids.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessRule {
    /// Names of the listeners that it applies to; empty is all.
    pub listeners: Vec<String>,
    /// Hosts that it applies to, exact or `*.suffix`, in lower case; empty is all.
    pub hosts: Vec<String>,
    /// Prefixes of paths that it applies to, on segment boundaries; empty is all. With prefixes, it applies to no
    /// tunnel.
    pub path_prefix: Vec<String>,
    /// The clients.
    pub access: Access,
}

keys! { Access, settle says_something {
    allow: Vec::new(), List(NETWORKS_MAX, NETWORK);
    deny: Vec::new(), List(NETWORKS_MAX, NETWORK);
    allow_files: Vec::new(), List(FILES_MAX, File);
    deny_files: Vec::new(), List(FILES_MAX, File);
}}

keys! { AccessRule {
    listeners: Vec::new(), List(NAMES_MAX, checked(text::name));
    hosts: Vec::new(), List(NAMES_MAX, lowered(text::host_pattern));
    path_prefix: Vec::new(), List(NAMES_MAX, checked(|path| text::url_path(path, false)));
} rest {
    access: Access::default(),
}}

/// An empty list of allowed clients would let everybody through.
fn says_something(_: &mut Access, fields: &mut Fields<'_>) {
    for key in ["allow", "deny"] {
        fields.refuse_null(key, "networks such as 10.0.0.0/8");
    }
    for key in ["allow_files", "deny_files"] {
        fields.refuse_null(key, "paths of files");
    }
    let lists = ["allow", "deny", "allow_files", "deny_files"].map(|key| fields.get(key));
    if lists.iter().all(Option::is_none) && !fields.is_broken() {
        fields.mistake("no clients; write allow, deny or both");
    }
    for item in lists.into_iter().flatten().filter(is_empty_list) {
        item.mistake("the list is empty; fill it or remove the key");
    }
}

fn is_empty_list(item: &Item<'_>) -> bool {
    item.value.as_sequence().is_some_and(Vec::is_empty)
}

/// One rule, with the lists among its keys.
pub(super) const RULE: Own<AccessRule> = Own {
    read: |item| {
        let mut fields = item.fields();
        let mut rule = AccessRule::default();
        rule.read_keys(&mut fields);
        rule.access.read_keys(&mut fields);
        rule.access.settle(&mut fields);
        fields.finish();
        Some(rule)
    },
    write: |rule| {
        let mut out = Out::default();
        rule.write_keys(&mut out);
        rule.access.write_given(&mut out);
        out.done()
    },
    shape: || Shape::Map([AccessRule::keys(), Access::keys()].concat()),
};

/// The lists of a route.
pub(super) const ACCESS: Own<Access> = Own {
    read: |item| {
        let mut fields = item.fields();
        let mut access = Access::default();
        access.read_keys(&mut fields);
        access.settle(&mut fields);
        fields.finish();
        Some(access)
    },
    write: |access| {
        let mut out = Out::default();
        access.write_given(&mut out);
        out.done()
    },
    shape: || Shape::Map(Access::keys()),
};

impl Access {
    /// Writes the lists that are not empty: an empty one is a mistake.
    fn write_given(&self, out: &mut Out) {
        for (key, networks) in [("allow", &self.allow), ("deny", &self.deny)] {
            let texts: Vec<String> = networks.iter().map(IpNet::to_string).collect();
            out.put_some(key, (!texts.is_empty()).then(|| super::out::texts(&texts)));
        }
        for (key, files) in [("allow_files", &self.allow_files), ("deny_files", &self.deny_files)] {
            out.put_some(
                key,
                (!files.is_empty()).then(|| super::out::list(files, |path| super::out::file(path))),
            );
        }
    }
}
