//! The authorities that the system trusts.

use crate::tls::TlsConfigError;
use std::sync::{Arc, LazyLock};

use rustls::RootCertStore;

/// The system's authorities; read once, because it takes about ten milliseconds.
pub(super) fn system_roots() -> &'static Result<Arc<RootCertStore>, TlsConfigError> {
    static ROOTS: LazyLock<Result<Arc<RootCertStore>, TlsConfigError>> = LazyLock::new(|| {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        // Systems contain some certificates that no library accepts.
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added > 0 {
            return Ok(Arc::new(roots));
        }
        let why = found.errors.first().map_or("there are none".to_owned(), ToString::to_string);
        Err(format!("the system has no usable certificate authorities ({why}); write ca_file").into())
    });
    &ROOTS
}
