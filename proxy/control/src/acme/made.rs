//! Self-signed certificates: placeholders that are served until a certificate is issued, and responses to TLS
//! challenges.

use crate::acme::AcmeError;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, date_time_ymd};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::CertifiedKey;

/// The `source` of a self-signed certificate on the status page.
pub(super) const SOURCE: &str = "self-signed";

/// Validity of a placeholder: short, so that monitoring of expiring certificates reports it.
const VALID: Duration = Duration::from_secs(7 * 86_400);
/// How far a client's clock may lag behind ours.
const BEFORE: Duration = Duration::from_secs(3600);

/// A placeholder for `name`, which no client trusts.
///
/// # Errors
/// When it cannot be created, which does not happen for configured names.
pub(super) fn placeholder(name: &str) -> Result<Arc<CertifiedKey>, AcmeError> {
    let mut params = params(name)?;
    params.distinguished_name.push(DnType::CommonName, "sluice: waiting for a certificate");
    self_signed(&params)
}

/// The response to a TLS challenge (RFC 8737 section 3): `digest` is the SHA-256 of the key authorization.
///
/// # Errors
/// As above.
pub(super) fn challenge(name: &str, digest: &[u8]) -> Result<Arc<CertifiedKey>, AcmeError> {
    let mut params = params(name)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    self_signed(&params)
}

/// The key of a certificate, in PEM, and the signing request, in DER (RFC 8555 section 7.4).
///
/// # Errors
/// As above.
pub(super) fn request(name: &str) -> Result<(String, Vec<u8>), AcmeError> {
    let key = KeyPair::generate().map_err(said)?;
    let request = params(name)?.serialize_request(&key).map_err(said)?;
    Ok((key.serialize_pem(), request.der().to_vec()))
}

fn params(name: &str) -> Result<CertificateParams, AcmeError> {
    let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(said)?;
    // rcgen would insert its own name, and authorities refuse names they do not know.
    params.distinguished_name = DistinguishedName::new();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    params.not_before = date_time_ymd(1970, 1, 1) + now.saturating_sub(BEFORE);
    params.not_after = date_time_ymd(1970, 1, 1) + now + VALID;
    Ok(params)
}

fn self_signed(params: &CertificateParams) -> Result<Arc<CertifiedKey>, AcmeError> {
    let key = KeyPair::generate().map_err(said)?;
    let certificate = params.self_signed(&key).map_err(said)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(str::to_owned)?;
    let signer =
        sluice_core::tls::crypto::sign::any_supported_type(&key).map_err(|error| error.to_string())?;
    Ok(Arc::new(CertifiedKey::new(vec![certificate.der().clone()], signer)))
}

fn said(error: rcgen::Error) -> String {
    error.to_string()
}
