//! Rules between a listener's keys about TLS; see `validate`.

use super::https::PRELOAD_AGE_S;
use super::path::Path;
use super::problem::Problems;
use super::tls::CIPHER_SUITES;
use super::{Address, ClientAuthMode, Listener, Protocol, ProxyProtocol, Tls, TlsVersion};

/// Reports conflicts between the keys of one listener.
pub(super) fn check(listener: &Listener, path: &Path, problems: &Problems) {
    let http = listener.protocol == Protocol::Http;
    if let Some(tls) = &listener.tls {
        check_tls(tls, &path.key("tls"), problems);
    }
    if listener.redirect_to_https.is_some() && (!http || listener.tls.is_some()) {
        let message = "only an http listener without tls can redirect to https; remove it";
        problems.add(&path.key("redirect_to_https"), message);
    }
    if let Some(http3) = &listener.http3 {
        check_http3(listener, &path.key("http3"), problems);
        if http3.has_early_data() {
            check_early_data(listener, &path.key("http3").key("early_data"), problems);
        }
    }
    let Some(hsts) = &listener.hsts else {
        return;
    };
    if !http || listener.tls.is_none() {
        // RFC 6797 7.2: only over TLS.
        problems
            .add(&path.key("hsts"), "only an http listener with tls can send HSTS; remove it, or write tls");
    }
    if hsts.preload && (!hsts.include_subdomains || hsts.max_age_s < PRELOAD_AGE_S) {
        let message = format!(
            "the preload list requires include_subdomains: true and max_age_s of {PRELOAD_AGE_S}; write \
             both"
        );
        problems.add(&path.key("hsts").key("preload"), message);
    }
}

fn check_http3(listener: &Listener, path: &Path, problems: &Problems) {
    let message = if listener.protocol != Protocol::Http || listener.tls.is_none() {
        "only an http listener with tls can speak HTTP/3; remove it, or write tls"
    } else if matches!(listener.address, Address::Unix(_)) {
        "HTTP/3 needs a UDP port, which a unix socket has not; remove it"
    } else if listener.proxy_protocol != ProxyProtocol::Off {
        "a proxy in front that sends PROXY protocol headers forwards no UDP; remove it"
    } else if listener
        .tls
        .as_ref()
        .is_some_and(|tls| has_suite(tls, tls.min_version) && !has_suite(tls, TlsVersion::V13))
    {
        "none of tls.cipher_suites is for TLS 1.3, which HTTP/3 needs; add one that is"
    } else {
        return;
    };
    problems.add(path, message);
}

/// Early data belongs to a session that is resumed.
fn check_early_data(listener: &Listener, path: &Path, problems: &Problems) {
    let Some(tls) = &listener.tls else { return };
    if !tls.session_tickets {
        problems.add(path, "clients cannot return with tls.session_tickets: false; remove one of them");
    }
    if tls.client_auth.mode != ClientAuthMode::Off {
        // A recorded request would act for the client that the certificate names.
        problems.add(path, "a request could be repeated in the name of a client certificate; remove it");
    }
}

fn check_tls(tls: &Tls, path: &Path, problems: &Problems) {
    let auth = path.key("client_auth");
    match (tls.client_auth.mode, &tls.client_auth.ca_file) {
        (ClientAuthMode::Off, Some(_)) => {
            problems
                .add(&auth.key("mode"), "ca_file has no effect with mode: off; write optional or required");
        }
        (ClientAuthMode::Optional | ClientAuthMode::Required, None) => {
            problems
                .add(&auth, "ca_file is missing; write the file of the CAs that sign client certificates");
        }
        _ => {}
    }
    if !has_suite(tls, tls.min_version) {
        let message = format!("none of these is for TLS {} or later; add one that is", tls.min_version);
        problems.add(&path.key("cipher_suites"), message);
    }
}

/// Whether a cipher suite is allowed that this version or a later one has.
fn has_suite(tls: &Tls, min_version: TlsVersion) -> bool {
    let usable =
        |name: &String| CIPHER_SUITES.iter().any(|(known, version)| known == name && *version >= min_version);
    tls.cipher_suites.is_empty() || tls.cipher_suites.iter().any(usable)
}
