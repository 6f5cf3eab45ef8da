//! The HTTP client for an authority: HTTPS with limits on time and size, and Retry-After.

use crate::acme::AcmeError;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pooled;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sluice_core::tls::system_roots;

use crate::outbound::{client_config, with_causes};

/// Time limit of one request, including its response. Some authorities take a while to sign.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum bytes of a response: a long chain takes about ten thousand.
const ANSWER_BYTES_MAX: usize = 1 << 20;

type Inner = Pooled<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>;

/// A client of one authority.
#[derive(Clone)]
pub(super) struct Client {
    inner: Inner,
    told: Arc<RetryAfter>,
}

/// What an authority said in Retry-After.
#[derive(Debug, Default)]
pub(super) struct RetryAfter(Mutex<Option<Duration>>);

impl RetryAfter {
    /// Takes the last value.
    pub(super) fn take(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note(&self, status: StatusCode, fields: &HeaderMap, now: SystemTime) {
        let too_often = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        if let Some(pause) = retry_after(fields, now).filter(|_| too_often) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(pause);
        }
    }
}

impl Client {
    /// A client that trusts the CAs of `ca_file`, or those of this host. Blocks.
    ///
    /// # Errors
    /// Which file cannot be used.
    pub(super) fn new(ca_file: Option<&Path>) -> Result<Self, AcmeError> {
        let roots = roots(ca_file)?;
        let config = client_config(roots).map_err(|error| error.to_string())?;
        let connector = HttpsConnectorBuilder::new().with_tls_config(config);
        let connector = connector.https_only().enable_http1().build();
        let inner = Pooled::builder(TokioExecutor::new()).build(connector);
        Ok(Self { inner, told: Arc::default() })
    }

    /// What the authority said in Retry-After.
    pub(super) fn told(&self) -> &Arc<RetryAfter> {
        &self.told
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let at = request.uri().host().unwrap_or_default().to_owned();
        let sent = self.inner.request(request);
        let told = Arc::clone(&self.told);
        Box::pin(async move {
            let answered = async {
                let answer = sent.await.map_err(|error| with_causes(&error))?;
                receive(answer, &told).await
            };
            let answer = tokio::time::timeout(TIMEOUT, answered).await;
            let answer =
                answer.unwrap_or_else(|_| Err(format!("no response within {} s", TIMEOUT.as_secs()).into()));
            answer.map_err(|message| Error::Other(format!("{at}: {message}").into()))
        })
    }
}

async fn receive(answer: Response<Incoming>, told: &RetryAfter) -> Result<BytesResponse, AcmeError> {
    let (parts, body) = answer.into_parts();
    told.note(parts.status, &parts.headers, SystemTime::now());
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| with_causes(error.as_ref()))?.to_bytes();
    // Without this, a response that is not a problem document would be reported as broken JSON.
    if !parts.status.is_success() && !body.starts_with(b"{") {
        return Err(format!("status {}", parts.status).into());
    }
    Ok(BytesResponse { parts, body: Box::new(body) })
}

/// RFC 9110 section 10.2.3.
fn retry_after(fields: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = fields.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match value.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(value).ok()?.duration_since(now).ok(),
    }
}

fn roots(ca_file: Option<&Path>) -> Result<Arc<RootCertStore>, AcmeError> {
    let Some(file) = ca_file else {
        return system_roots().map_err(|error| error.to_string().into());
    };
    let mut roots = RootCertStore::empty();
    let said = |error: String| format!("acme.ca_file: {}: {error}", file.display());
    let found = CertificateDer::pem_file_iter(file).map_err(|error| said(error.to_string()))?;
    for authority in found {
        let authority = authority.map_err(|error| said(error.to_string()))?;
        roots.add(authority).map_err(|error| said(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(said("it contains no certificate".to_owned()).into());
    }
    Ok(Arc::new(roots))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn said(value: &str) -> Option<Duration> {
        let mut fields = HeaderMap::new();
        fields.insert(RETRY_AFTER, value.parse().unwrap());
        retry_after(&fields, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(said(" 120 "), Some(Duration::from_secs(120)));
        assert_eq!(said("Thu, 01 Jan 1970 00:02:00 GMT"), Some(Duration::from_secs(120)));
        assert_eq!(said("soon"), None);
    }

    #[test]
    fn only_rate_limiting_sets_retry_after() {
        let mut fields = HeaderMap::new();
        fields.insert(RETRY_AFTER, "5".parse().unwrap());
        let told = RetryAfter::default();
        told.note(StatusCode::OK, &fields, SystemTime::now());
        assert_eq!(told.take(), None);
        told.note(StatusCode::TOO_MANY_REQUESTS, &fields, SystemTime::now());
        assert_eq!((told.take(), told.take()), (Some(Duration::from_secs(5)), None));
    }
}
