//! Renewal information (ARI, RFC 9773): authorities ask for earlier renewal before they revoke certificates, and spread
//! renewals over time.

use std::rc::Rc;
use std::time::Duration;

use instant_acme::{CertificateIdentifier, Error};
use rustls::pki_types::CertificateDer;
use sluice_core::tls::Certificate;
use tokio::time::timeout;

use super::account::Authority;
use super::failure::Failure;

/// Time limit for the account and one response.
const PATIENCE: Duration = Duration::from_secs(60);

/// An authority's advice about one certificate, in milliseconds of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start_ms: u64,
    pub(super) end_ms: u64,
}

/// An authority's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) window: Window,
    /// Time until it should be asked again, in milliseconds.
    pub(super) again_ms: u64,
}

/// Asks about a certificate; `None` if the authority gives no advice.
///
/// # Errors
/// Why there is no response.
pub(super) async fn ask(
    authority: &Rc<Authority>,
    certificate: &Certificate,
) -> Result<Option<Advice>, Failure> {
    let Some(leaf) = leaf(certificate) else { return Ok(None) };
    let Some(id) = identifier(&leaf) else { return Ok(None) };
    let lock = authority.lock()?;
    let asked = async {
        let session = authority.session(&lock).await?;
        match session.account.renewal_info(&id).await {
            Ok((info, again)) => {
                let ms = |at: time::OffsetDateTime| {
                    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or_default()
                };
                let window = info.suggested_window;
                let window = Window { start_ms: ms(window.start), end_ms: ms(window.end) };
                Ok(Some(Advice { window, again_ms: u64::try_from(again.as_millis()).unwrap_or(u64::MAX) }))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(Failure::new("timed out")))
}

/// The certificate itself, without its chain.
pub(super) fn leaf(certificate: &Certificate) -> Option<CertificateDer<'static>> {
    certificate.certified.cert.first().cloned()
}

/// The identifier of the certificate (RFC 9773 section 4.1); `None` if it does not name the key that signed it.
pub(super) fn identifier(leaf: &CertificateDer<'_>) -> Option<CertificateIdentifier<'static>> {
    CertificateIdentifier::try_from(leaf).ok().map(CertificateIdentifier::into_owned)
}
