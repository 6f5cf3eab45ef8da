//! Whether a chain leads to a root. Findings are only warnings: a client may know more roots than this host.

use std::collections::HashSet;
use std::sync::OnceLock;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

/// Problems that clients are likely to have with the chain.
pub(super) fn check(chain: &[CertificateDer<'_>]) -> Option<String> {
    let parsed: Vec<X509Certificate<'_>> =
        chain.iter().filter_map(|one| X509Certificate::from_der(one).ok().map(|(_, one)| one)).collect();
    if parsed.len() < chain.len() {
        return Some("a certificate after the first is malformed".to_owned());
    }
    for (index, pair) in parsed.windows(2).enumerate() {
        if pair[0].issuer().as_raw() != pair[1].subject().as_raw() {
            let (number, issuer) = (index + 2, pair[0].issuer());
            return Some(format!(
                "certificate {number} is not the issuer ({issuer}) of the previous one; put them in order"
            ));
        }
    }
    let last = parsed.last()?;
    if is_self_issued(last) || roots().contains(last.issuer().as_raw()) {
        return None;
    }
    Some(format!(
        "the certificate of its issuer ({}) is missing, and the issuer is not a root of this host; append the intermediate certificates",
        shown(last.issuer())
    ))
}

fn is_self_issued(certificate: &X509Certificate<'_>) -> bool {
    certificate.issuer().as_raw() == certificate.subject().as_raw()
}

fn shown(name: &X509Name<'_>) -> String {
    name.to_string()
}

/// The subjects of the system's roots; empty if it has none.
fn roots() -> &'static HashSet<Vec<u8>> {
    static ROOTS: OnceLock<HashSet<Vec<u8>>> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs().certs;
        let subject = |der: &CertificateDer<'_>| {
            X509Certificate::from_der(der).ok().map(|(_, root)| root.subject().as_raw().to_vec())
        };
        found.iter().filter_map(subject).collect()
    })
}
