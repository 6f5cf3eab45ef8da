//! One certificate with its key: read from PEM files and checked, with its names and validity.

use crate::tls::TlsConfigError;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::chain;

/// Maximum size of a file of certificates or of a key, in bytes; a long chain takes about ten thousand.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of an OCSP response, in bytes; a TLS message could carry more, but no responder sends that much.
const OCSP_BYTES_MAX: usize = 1 << 16;

/// The files of one certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// The certificate and its chain.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// An OCSP response.
    pub ocsp: Option<PathBuf>,
}

/// A certificate that can be served.
pub struct Certificate {
    /// Chain, key and staple.
    pub certified: Arc<CertifiedKey>,
    /// The hosts it is for, in lower case, some with a `*.` prefix; never empty.
    pub names: Vec<String>,
    /// Start of its validity, in seconds of Unix time.
    pub not_before: i64,
    /// End of its validity, in seconds of Unix time.
    pub not_after: i64,
    /// Its source: a file name, or a keyword.
    pub source: String,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never print the key.
        f.debug_struct("Certificate").field("names", &self.names).field("source", &self.source).finish()
    }
}

impl Certificate {
    /// Examines the first certificate of a chain.
    ///
    /// # Errors
    /// Why it cannot be served to any client.
    pub fn new(certified: Arc<CertifiedKey>, source: String) -> Result<Self, TlsConfigError> {
        let leaf = certified.end_entity_cert().map_err(|error| error.to_string())?;
        let (_, parsed) =
            X509Certificate::from_der(leaf).map_err(|error| format!("is not a certificate: {error}"))?;
        let (not_before, not_after) =
            (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        let names = names(&parsed);
        if names.is_empty() {
            return Err("the certificate has no host name in subjectAltName".into());
        }
        Ok(Self { certified, names, not_before, not_after, source })
    }

    /// The name used for it in logs and metrics.
    pub fn first_name(&self) -> &str {
        self.names.first().map_or("-", String::as_str)
    }

    /// End of its validity.
    pub fn until(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(self.not_after).unwrap_or(0))
    }

    /// Whether it is valid at this second of Unix time.
    pub fn is_valid_at(&self, now_unix_s: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now_unix_s)
    }
}

/// Reads and checks one pair. Returns the certificate, and its problems that do not prevent serving it.
///
/// # Errors
/// What prevents serving it, with the file's name.
pub fn load(pair: &Pair, now_unix_s: i64) -> Result<(Certificate, Vec<String>), TlsConfigError> {
    let chain = read_chain(&pair.cert)?;
    let key = read_key(&pair.key)?;
    let shown = pair.cert.display();
    let signer = crate::tls::crypto::sign::any_supported_type(&key)
        .map_err(|error| format!("{}: the key is of an unsupported kind: {error}", pair.key.display()))?;
    let mut certified = CertifiedKey::new(chain, signer);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(Error::InconsistentKeys(_)) => {
            return Err(format!("{}: the key does not match {shown}", pair.key.display()).into());
        }
        Err(error) => return Err(format!("{shown}: {error}").into()),
    }
    let mut warnings = Vec::new();
    match pair.ocsp.as_deref().map(read_ocsp) {
        Some(Ok(response)) => certified.ocsp = Some(response),
        Some(Err(message)) => warnings.push(format!("{message}; no OCSP response is stapled")),
        None => {}
    }
    let certificate = Certificate::new(Arc::new(certified), shown.to_string())
        .map_err(|message| format!("{shown}: {message}"))?;
    let found =
        validity(&certificate, now_unix_s).into_iter().chain(chain::check(&certificate.certified.cert));
    warnings.extend(found.map(|message| format!("{shown}: {message}")));
    warnings.extend(others_may_read(&pair.key));
    Ok((certificate, warnings))
}

/// Reads a file of limited size.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, TlsConfigError> {
    let shown = file.display();
    let cannot = |error: std::io::Error| format!("{shown}: cannot be read: {error}");
    // Checked before opening: opening a FIFO would wait for its writer.
    if !fs::metadata(file).map_err(cannot)?.is_file() {
        return Err(format!("{shown}: is not a file; write the path of a file").into());
    }
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(cannot)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("{shown}: larger than {FILE_BYTES_MAX} bytes").into());
    }
    Ok(bytes)
}

/// Every certificate of a PEM file.
pub(super) fn read_chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let (bytes, shown) = (read(file)?, file.display());
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("{shown}: is malformed: {error}"))?;
    match chain.is_empty() {
        true if bytes.first() == Some(&0x30) => {
            Err(format!("{shown}: is DER; write PEM: openssl x509 -inform der -in {shown}").into())
        }
        true => Err(format!("{shown}: contains no certificate (-----BEGIN CERTIFICATE-----)").into()),
        false => Ok(chain),
    }
}

fn read_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
    let (bytes, shown) = (read(file)?, file.display());
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        pem::Error::NoItemsFound if contains(&bytes, b"ENCRYPTED PRIVATE KEY") => {
            format!("{shown}: the key is encrypted; remove the passphrase: openssl pkey -in {shown}").into()
        }
        pem::Error::NoItemsFound => format!("{shown}: contains no key (-----BEGIN PRIVATE KEY-----)").into(),
        error => format!("{shown}: is malformed: {error}").into(),
    })
}

/// RFC 6960 4.2.1: a sequence whose first part, the status, is 0.
fn read_ocsp(file: &Path) -> Result<Vec<u8>, TlsConfigError> {
    let (bytes, shown) = (read(file)?, file.display());
    if bytes.len() > OCSP_BYTES_MAX {
        return Err(format!("{shown}: larger than {OCSP_BYTES_MAX} bytes").into());
    }
    let body = match bytes.get(1) {
        Some(length) if *length < 0x80 => bytes.get(2..),
        Some(length) => bytes.get(2 + usize::from(length & 0x7f)..),
        None => None,
    };
    let body = body.filter(|_| bytes[0] == 0x30).unwrap_or_default();
    if !body.starts_with(&[0x0a, 1, 0]) {
        return Err(format!("{shown}: is not a successful OCSP response in DER").into());
    }
    Ok(bytes)
}

fn validity(certificate: &Certificate, now_unix_s: i64) -> Option<String> {
    let days = |seconds: i64| seconds / 86_400;
    if now_unix_s > certificate.not_after {
        let ago = days(now_unix_s - certificate.not_after);
        return Some(format!("expired {ago} days ago; clients reject it"));
    }
    if now_unix_s < certificate.not_before {
        let wait = days(certificate.not_before - now_unix_s);
        return Some(format!(
            "is not valid for another {wait} days; clients reject it, or the clock is wrong"
        ));
    }
    None
}

fn others_may_read(key: &Path) -> Option<String> {
    let mode = fs::metadata(key).ok()?.permissions().mode();
    let shown = key.display();
    (mode & 0o004 != 0).then(|| format!("{shown}: the key is world-readable: chmod o= {shown}"))
}

/// RFC 6125: the subject's common name counts only if there is no alternative name.
fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut add = |name: &str| {
        let name = name.to_ascii_lowercase();
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    };
    let mut alternatives = false;
    for name in
        certificate.subject_alternative_name().ok().flatten().iter().flat_map(|san| &san.value.general_names)
    {
        alternatives = true;
        match name {
            GeneralName::DNSName(name) => add(name),
            // No client requests an IP address by name; the certificate is served to clients that request no name.
            GeneralName::IPAddress(bytes) => {
                let address = match <[u8; 4]>::try_from(*bytes) {
                    Ok(v4) => Some(std::net::IpAddr::from(v4)),
                    Err(_) => <[u8; 16]>::try_from(*bytes).ok().map(std::net::IpAddr::from),
                };
                address.iter().for_each(|address| add(&address.to_string()));
            }
            _ => {}
        }
    }
    if !alternatives {
        certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok()).for_each(add);
    }
    names
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(bytes, part).is_some()
}
