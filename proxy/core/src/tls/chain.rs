//! Whether a chain leads to a root. What is found are warnings: a client may know more than this host does.

use std::collections::HashSet;
use std::sync::OnceLock;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

/// What clients are likely to stumble over.
pub(super) fn check(chain: &[CertificateDer<'_>]) -> Option<String> {
    let parsed: Vec<X509Certificate<'_>> =
        chain.iter().filter_map(|one| X509Certificate::from_der(one).ok().map(|(_, one)| one)).collect();
    if parsed.len() < chain.len() {
        return Some("a certificate behind the first is broken".to_owned());
    }
    for (index, pair) in parsed.windows(2).enumerate() {
        if pair[0].issuer().as_raw() != pair[1].subject().as_raw() {
            let (number, issuer) = (index + 2, pair[0].issuer());
            return Some(format!(
                "certificate {number} in it is not the issuer ({issuer}) of the one before; put them in order"
            ));
        }
    }
    let last = parsed.last()?;
    if is_self_issued(last) || roots().contains(last.issuer().as_raw()) {
        return None;
    }
    Some(format!(
        "the certificate of its issuer ({}) is missing, and it is no root of this host; append the intermediate ones",
        shown(last.issuer())
    ))
}

fn is_self_issued(certificate: &X509Certificate<'_>) -> bool {
    certificate.issuer().as_raw() == certificate.subject().as_raw()
}

fn shown(name: &X509Name<'_>) -> String {
    name.to_string()
}

/// The subjects of the system's roots; none if it has none.
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
