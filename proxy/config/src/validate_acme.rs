//! Rules between keys about ACME; see `validate`.

use super::path::Path;
use super::problem::{Problems, quote};
use super::{AcmeChallenge, Config, ListenerAcme};

/// Reports listeners that need certificates which the process cannot obtain.
pub(super) fn check(config: &Config, problems: &Problems) {
    let root = Path::root();
    let dns = config.acme.as_ref().is_some_and(|acme| acme.challenge == AcmeChallenge::Dns01);
    if config.acme.is_some() && config.store.as_ref().is_some_and(|store| store.key_file.is_none()) {
        let message = "key_file is missing; write a file with a key that encrypts certificates in the store";
        problems.add(&root.key("store"), message);
    }
    if let Some(acme) = &config.acme {
        let path = root.key("acme");
        match &acme.dns_hook {
            None if dns => {
                problems.add(&path, "dns_hook is missing; write the command that changes DNS records")
            }
            Some(_) if !dns => {
                problems.add(&path.key("dns_hook"), "it has no effect without challenge: dns-01; write both");
            }
            _ => {}
        }
        if acme.retry_max_ms < acme.retry_first_ms {
            let message = format!("less than retry_first_ms; write at least {}", acme.retry_first_ms);
            problems.add(&path.key("retry_max"), message);
        }
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        let Some(names) = listener.tls.as_ref().and_then(|tls| tls.acme.as_ref()) else { continue };
        let path = root.key("listeners").index(index).key("tls").key("acme");
        if config.acme.is_none() {
            let write = "write acme: {terms_agreed: true} at the top";
            problems.add(&path, format!("acme is off, so no certificates can be issued; {write}"));
        } else if !dns {
            wildcards(names, &path, problems);
        }
    }
}

/// Only dns-01 can prove control of a wildcard (RFC 8555 section 8.4).
fn wildcards(names: &ListenerAcme, path: &Path, problems: &Problems) {
    for (index, name) in names.names.iter().enumerate().filter(|(_, name)| name.starts_with("*.")) {
        let message = format!("{} needs a DNS challenge; write challenge: dns-01 under acme", quote(name));
        problems.add(&path.key("names").index(index), message);
    }
}
