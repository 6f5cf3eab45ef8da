//! A certificate for servers in tests and benchmarks, and a client that trusts it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Result;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::workspace::must;

/// A certificate for 127.0.0.1 with its key, both in files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate, self-signed.
    pub certificate: PathBuf,
    /// Its key on the curve P-256, which most sites use.
    pub key: PathBuf,
    /// Certificate and key in one file.
    pub both: PathBuf,
}

impl Identity {
    /// Creates a certificate and its key in `folder`.
    ///
    /// # Errors
    /// openssl fails.
    pub fn make(folder: &Path, openssl: &Path) -> Result<Self> {
        let file = |name: &str| folder.join(name);
        let identity =
            Self { certificate: file("certificate.pem"), key: file("key.pem"), both: file("both.pem") };
        let mut command = Command::new(openssl);
        command
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "30", "-subj", "/CN=bench"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .args(["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout"])
            .arg(&identity.key)
            .arg("-out")
            .arg(&identity.certificate);
        must(command.stderr(Stdio::null()))?;
        let both = [fs::read(&identity.certificate)?, fs::read(&identity.key)?].concat();
        fs::write(&identity.both, both)?;
        Ok(identity)
    }

    /// A client that trusts only this certificate.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn client(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.certificate)?)?;
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Arc::new(config))
    }
}
