//! One attempt to obtain a certificate, from taking the lock to writing the file.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::tls::Certificate;
use tokio::time::timeout;

use super::account::{Authority, Session, blocking};
use super::challenge::ChallengeMethods;
use super::failure::{Failure, Kind};
use super::folder::{Lock, file_stem};
use super::{order, schedule};

/// Maximum number of orders of an attempt. Another one is made only if the authority refuses a nonce three times in a
/// row, which says nothing about the name: waiting as after a failure would leave it without a certificate for long.
const ORDERS_MAX: u32 = 10;

/// The result of an attempt.
pub(super) struct IssuedCertificate {
    pub(super) certificate: Arc<Certificate>,
    /// Whether this attempt ordered it; another process may have been faster.
    pub(super) is_new: bool,
}

/// Obtains a certificate for `name` and stores it. `replaced` is the certificate that the authority advises to renew
/// early.
///
/// # Errors
/// Why there is none.
pub(super) async fn attempt(
    authority: &Rc<Authority>,
    name: &str,
    ways: &ChallengeMethods,
    replaced: Option<Arc<Certificate>>,
) -> Result<IssuedCertificate, Failure> {
    let lock = authority.lock()?;
    let _fleet_lock = authority.lock_fleet().await?;
    take_over(authority, name).await?;
    let is_replaced = |kept: &Certificate| {
        replaced.as_ref().is_some_and(|replaced| replaced.certified.cert == kept.certified.cert)
    };
    if let Some(certificate) = kept(authority, name).await?.filter(|kept| !is_replaced(kept)) {
        return Ok(IssuedCertificate { certificate, is_new: false });
    }
    let mut orders = 1;
    let pem = loop {
        match obtain(authority, &lock, name, ways, replaced.as_deref()).await {
            Err(failure) if failure.kind == Kind::StaleNonce && orders < ORDERS_MAX => orders += 1,
            obtained => break obtained?,
        }
    };
    let (folder, of, chain) = (authority.folder.clone(), name.to_owned(), pem.clone());
    let certificate = blocking(move || folder.keep(&of, &chain)).await?.map_err(Failure::from)?;
    if let Some(shared) = &authority.shared {
        // It is served here in any case; the keeper gives it to the others later.
        let put = shared.put_certificate(&folder_name(authority), name, &pem).await;
        let _ = put.inspect_err(|failure| {
            tracing::warn!(name, "the fleet does not have the new certificate yet: {}", failure.text);
        });
    }
    Ok(IssuedCertificate { certificate, is_new: true })
}

fn folder_name(authority: &Authority) -> String {
    authority.folder.authority.clone()
}

/// Stores the certificate that another member has obtained, if it is valid for longer than the one here.
pub(super) async fn take_over(
    authority: &Rc<Authority>,
    name: &str,
) -> Result<Option<Arc<Certificate>>, Failure> {
    let Some(shared) = &authority.shared else { return Ok(None) };
    let Some(pem) = shared.certificate(&authority.folder.authority, &file_stem(name)) else {
        return Ok(None);
    };
    let (folder, of) = (authority.folder.clone(), name.to_owned());
    let kept = blocking(move || folder.keep_newer(&of, &pem)).await?;
    kept.map_err(Failure::from)
}

/// The certificate of one order and its key, in PEM.
async fn obtain(
    authority: &Rc<Authority>,
    lock: &Lock,
    name: &str,
    ways: &ChallengeMethods,
    replaced: Option<&Certificate>,
) -> Result<String, Failure> {
    let session = authority.session(lock).await?;
    let obtained =
        timeout(patience(authority), order::obtain(&session, name, &authority.config, ways, replaced)).await;
    match obtained.unwrap_or_else(|_| Err(Failure::new("timed out"))) {
        Ok(pem) => Ok(pem),
        Err(failure) => Err(judged(failure, authority, &session).await),
    }
}

/// The stored certificate, if it does not need to be renewed yet.
async fn kept(authority: &Authority, name: &str) -> Result<Option<Arc<Certificate>>, Failure> {
    let (folder, of) = (authority.folder.clone(), name.to_owned());
    let kept = blocking(move || folder.certificate(&of)).await?;
    let now_ms = schedule::now_ms();
    Ok(kept.filter(|kept| {
        schedule::renewal_ms(kept.not_before, kept.not_after, &authority.config, 1.0) > now_ms
    }))
}

/// Time limit of an order: the authority's time limit, and twice that of the hook.
fn patience(authority: &Authority) -> Duration {
    let hook = authority.config.dns_hook.as_ref().map_or(0, |hook| 2 * hook.timeout_ms + hook.wait_ms);
    Duration::from_millis(authority.config.order_timeout_ms.saturating_add(hook))
}

async fn judged(failure: Failure, authority: &Authority, session: &Session) -> Failure {
    match failure.kind {
        Kind::NoAccount => authority.forget(&session.account).await,
        Kind::RateLimited(_) => return Failure { kind: Kind::RateLimited(session.told.take()), ..failure },
        Kind::Failed | Kind::Busy | Kind::StaleNonce => {
            // A 503 without a problem document also counts as rate limiting.
            if let Some(pause) = session.told.take() {
                return Failure { kind: Kind::RateLimited(Some(pause)), ..failure };
            }
        }
    }
    failure
}
