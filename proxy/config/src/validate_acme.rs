//! What the keys about ACME say against each other; see `validate`.

use super::path::Path;
use super::problem::{Problems, quote};
use super::{AcmeChallenge, Config, ListenerAcme};

/// Reports what listeners want that the process cannot have issued.
pub(super) fn check(config: &Config, problems: &Problems) {
    let root = Path::root();
    let dns = config.acme.as_ref().is_some_and(|acme| acme.challenge == AcmeChallenge::Dns01);
    if let Some(acme) = &config.acme {
        let path = root.key("acme");
        match &acme.dns_hook {
            None if dns => problems.add(&path, "dns_hook is missing; write the command that changes records"),
            Some(_) if !dns => {
                problems.add(&path.key("dns_hook"), "it is of no use without challenge: dns-01; write both");
            }
            _ => {}
        }
        if acme.retry_max_ms < acme.retry_first_ms {
            let message = format!("less than retry_first_ms; write at least {}", acme.retry_first_ms);
            problems.add(&path.key("retry_max_ms"), message);
        }
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        let Some(names) = listener.tls.as_ref().and_then(|tls| tls.acme.as_ref()) else { continue };
        let path = root.key("listeners").index(index).key("tls").key("acme");
        if config.acme.is_none() {
            let write = "write acme: {terms_agreed: true} at the top";
            problems.add(&path, format!("nobody is there to issue certificates; {write}"));
        } else if !dns {
            wildcards(names, &path, problems);
        }
    }
}

/// RFC 8555 section 8.4 alone can show it; of the others no authority takes it.
fn wildcards(names: &ListenerAcme, path: &Path, problems: &Problems) {
    for (index, name) in names.names.iter().enumerate().filter(|(_, name)| name.starts_with("*.")) {
        let message = format!("{} is only to be had by DNS; write challenge: dns-01 under acme", quote(name));
        problems.add(&path.key("names").index(index), message);
    }
}
