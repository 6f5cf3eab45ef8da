//! Verification of an endpoint's certificate: by authorities, by pins, or not at all; and the reason codes of failures.

use std::sync::Arc;
use std::{fmt, io};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, VerifierBuilderError};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use sluice_config::Pin;

use crate::error::Reason;

/// Maximum length of a logged error, in characters.
const DESCRIPTION_CHARS_MAX: usize = 300;

/// Verifies the certificates of endpoints.
#[derive(Debug)]
pub(super) struct Verifier {
    /// Verification by authorities and name; `None` accepts any certificate.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    /// If not empty, the certificate or its key must match a pin.
    pins: Vec<Pin>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// The certificate matches no pin.
#[derive(Debug)]
struct NotPinned;

impl fmt::Display for NotPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("neither the certificate nor its key is pinned")
    }
}

impl std::error::Error for NotPinned {}

impl Verifier {
    pub(super) fn new(
        roots: Arc<RootCertStore>,
        provider: Arc<CryptoProvider>,
        pins: Vec<Pin>,
    ) -> Result<Self, VerifierBuilderError> {
        let algorithms = provider.signature_verification_algorithms;
        let authorities = WebPkiServerVerifier::builder_with_provider(roots, provider).build()?;
        Ok(Self { authorities: Some(authorities), pins, algorithms })
    }

    /// A verifier that accepts any certificate, or any that matches a pin.
    pub(super) fn skipping(provider: &CryptoProvider, pins: Vec<Pin>) -> Self {
        Self { authorities: None, pins, algorithms: provider.signature_verification_algorithms }
    }

    fn is_pinned(&self, certificate: &CertificateDer<'_>) -> Result<bool, Error> {
        let is_pin = |bytes: &[u8]| self.pins.contains(&Pin(Sha256::digest(bytes).into()));
        let parsed = ParsedCertificate::try_from(certificate)?;
        Ok(self.pins.is_empty() || is_pin(&parsed.subject_public_key_info()) || is_pin(certificate))
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(authorities) = &self.authorities {
            authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        }
        if self.is_pinned(end_entity)? {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::Other(OtherError(Arc::new(NotPinned))).into())
    }

    // Always verify that the endpoint has the certificate's key: otherwise a pin would be worthless.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The reason code of a failed handshake with an endpoint.
pub fn reason(error: &Error) -> Reason {
    let Error::InvalidCertificate(error) = error else {
        return match error {
            Error::NoCertificatesPresented | Error::UnsupportedNameType => Reason::TlsVerifyFailed,
            _ => Reason::TlsHandshakeFailed,
        };
    };
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Reason::TlsCertificateExpired,
        // An authority of that name is known, but with another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => Reason::TlsUnknownIssuer,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Reason::TlsNameMismatch
        }
        CertificateError::Other(OtherError(other)) if other.is::<NotPinned>() => Reason::TlsPinMismatch,
        _ => Reason::TlsVerifyFailed,
    }
}

/// As `describe`, for a handshake that failed with an [`io::Error`].
pub fn describe_io(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    inner.map_or_else(|| error.to_string(), describe)
}

/// The description of an error for the log.
pub(crate) fn describe(error: &Error) -> String {
    let text = match error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(other))) => other.to_string(),
        error => error.to_string(),
    };
    // Some errors contain names from the certificate, which may be long.
    text.chars().take(DESCRIPTION_CHARS_MAX).collect()
}
