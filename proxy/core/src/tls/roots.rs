//! The authorities that the system trusts.

use crate::tls::TlsConfigError;
use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;

/// The authorities of this host, or those of the variables SSL_CERT_FILE and SSL_CERT_DIR. Read once, because it takes
/// about ten milliseconds, but again after a failure: the operator may have installed them since.
///
/// # Errors
/// There are none, or they cannot be read.
pub fn system_roots() -> Result<Arc<RootCertStore>, TlsConfigError> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Ok(Arc::clone(roots));
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Systems contain some certificates that no library accepts.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added > 0 {
        return Ok(Arc::clone(ROOTS.get_or_init(|| Arc::new(roots))));
    }
    let why = found.errors.first().map_or("there are none".to_owned(), ToString::to_string);
    let remedy = "install ca-certificates, or write ca_file";
    Err(format!("the system has no usable certificate authorities ({why}); {remedy}").into())
}
