//! The authorities that the system believes.

use crate::tls::TlsConfigError;
use std::sync::{Arc, LazyLock};

use rustls::RootCertStore;

/// Whom the system trusts; read once, for it takes some ten milliseconds.
pub(super) fn system_roots() -> &'static Result<Arc<RootCertStore>, TlsConfigError> {
    static ROOTS: LazyLock<Result<Arc<RootCertStore>, TlsConfigError>> = LazyLock::new(|| {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        // Systems come with some that no library takes.
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added > 0 {
            return Ok(Arc::new(roots));
        }
        let why = found.errors.first().map_or("there are none".to_owned(), ToString::to_string);
        Err(format!("the system has no authorities that could be believed ({why}); write ca_file").into())
    });
    &ROOTS
}
