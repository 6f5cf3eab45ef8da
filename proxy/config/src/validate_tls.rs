//! What a listener's keys about TLS say against each other; see `validate`.

use super::https::PRELOAD_AGE_S;
use super::path::Path;
use super::problem::Problems;
use super::tls::CIPHER_SUITES;
use super::{ClientAuthMode, Listener, Protocol, Tls};

/// Reports what keys of one listener say against each other.
pub(super) fn check(listener: &Listener, path: &Path, problems: &Problems) {
    let http = listener.protocol == Protocol::Http;
    if let Some(tls) = &listener.tls {
        check_tls(tls, &path.key("tls"), problems);
    }
    if listener.redirect_to_https.is_some() && (!http || listener.tls.is_some()) {
        let message = "only an http listener without tls can send clients to https; take it out";
        problems.add(&path.key("redirect_to_https"), message);
    }
    let Some(hsts) = &listener.hsts else {
        return;
    };
    if !http || listener.tls.is_none() {
        // RFC 6797 7.2: not over anything else.
        problems.add(&path.key("hsts"), "only an http listener with tls says it; take it out, or write tls");
    }
    if hsts.preload && (!hsts.include_subdomains || hsts.max_age_s < PRELOAD_AGE_S) {
        let message = format!(
            "the list asks for include_subdomains: true and max_age_s of {PRELOAD_AGE_S}; write both"
        );
        problems.add(&path.key("hsts").key("preload"), message);
    }
}

fn check_tls(tls: &Tls, path: &Path, problems: &Problems) {
    let auth = path.key("client_auth");
    match (tls.client_auth.mode, &tls.client_auth.ca_file) {
        (ClientAuthMode::Off, Some(_)) => {
            problems.add(&auth.key("mode"), "ca_file is of no use without it; write optional or required");
        }
        (ClientAuthMode::Optional | ClientAuthMode::Required, None) => {
            problems.add(&auth, "ca_file is missing; write whose certificates are taken");
        }
        _ => {}
    }
    let usable = |name: &String| {
        CIPHER_SUITES.iter().any(|(known, version)| known == name && *version >= tls.min_version)
    };
    if !tls.cipher_suites.is_empty() && !tls.cipher_suites.iter().any(usable) {
        let message = format!("none of these is of TLS {} or later; add one that is", tls.min_version);
        problems.add(&path.key("cipher_suites"), message);
    }
}
