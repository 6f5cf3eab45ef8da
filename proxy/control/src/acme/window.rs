//! When an authority would have a certificate renewed (ARI, RFC 9773): sooner where it is about to revoke it, and spread so
//! that not everybody comes at once.

use std::rc::Rc;
use std::time::Duration;

use instant_acme::{CertificateIdentifier, Error};
use rustls::pki_types::CertificateDer;
use sluice_core::tls::Certificate;
use tokio::time::timeout;

use super::account::Authority;
use super::failure::Failure;

/// For the account and one answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What an authority advises about one certificate, in milliseconds of Unix time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start_ms: u64,
    pub(super) end_ms: u64,
}

/// An authority's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) window: Window,
    /// After how long it is to be asked again, in milliseconds.
    pub(super) again_ms: u64,
}

/// Asks about a certificate; `None` of an authority that has no advice.
///
/// # Errors
/// Why there is no answer.
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
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(Failure::new("it takes too long")))
}

/// The certificate itself, without its chain.
pub(super) fn leaf(certificate: &Certificate) -> Option<CertificateDer<'static>> {
    certificate.certified.cert.first().cloned()
}

/// How an authority knows it (RFC 9773 section 4.1); `None` of one that does not say whose key has signed it.
pub(super) fn identifier(leaf: &CertificateDer<'_>) -> Option<CertificateIdentifier<'static>> {
    CertificateIdentifier::try_from(leaf).ok().map(CertificateIdentifier::into_owned)
}
