//! Certificates generated on the fly, in files of a temporary folder, and handshakes in memory.
#![allow(clippy::unwrap_used)]

mod files;
mod handshakes;
mod identity;
mod reload;
mod store;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SigningKey};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::CertifiedKey;
use sluice_config::{CIPHER_SUITES, CertificateFiles, Listener, Tls, TlsVersion};

use super::certificate::{Pair, load};

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let unique = format!("sluice-tls-{}-{:x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(unique);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file that only the owner may read; replaces an existing file by renaming, as certbot does.
    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let (path, next) = (self.path(name), self.path(".next"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&next, text).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&next, &path).unwrap();
        path
    }

    /// Writes NAME.pem and NAME.key.
    fn write_pair(&self, name: &str, made: &Made) -> Pair {
        let cert = self.write(&format!("{name}.pem"), &made.chain_pem);
        Pair { cert, key: self.write(&format!("{name}.key"), made.key.serialize_pem()), ocsp: None }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A certificate and its key.
struct Made {
    chain_pem: String,
    der: Vec<u8>,
    key: KeyPair,
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "of a test");
    params
}

fn make(params: &CertificateParams) -> Made {
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    Made { chain_pem: certificate.pem(), der: certificate.der().to_vec(), key }
}

/// Self-signed.
fn made(names: &[&str]) -> Made {
    make(&params(names))
}

/// An authority, and its certificate.
fn authority(name: &str) -> (Issuer<'static, KeyPair>, rcgen::Certificate) {
    let mut params = params(&[]);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    (Issuer::new(params, key), certificate)
}

fn signed(params: &CertificateParams, issuer: &Issuer<'static, impl SigningKey>) -> Made {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    Made { chain_pem: certificate.pem(), der: certificate.der().to_vec(), key }
}

fn certified(made: &Made) -> Arc<CertifiedKey> {
    let key = PrivateKeyDer::try_from(made.key.serialize_der()).unwrap();
    let signer = crate::tls::crypto::sign::any_supported_type(&key).unwrap();
    Arc::new(CertifiedKey::new(vec![made.der.clone().into()], signer))
}

fn pair_of(cert: &Path, key: &Path) -> CertificateFiles {
    CertificateFiles::Pair { cert: cert.into(), key: key.into(), ocsp: None }
}

fn tls(certificates: Vec<CertificateFiles>) -> Tls {
    Tls { certificates, ..Tls::default() }
}

/// An http listener named `web`.
fn listener(tls: Tls) -> Listener {
    let text =
        "listeners: [{name: web, address: '127.0.0.1:0'}]\nclusters: {a: {endpoints: ['127.0.0.1:1']}}\n";
    let config = sluice_config::parse("test.yaml", text, &[]).unwrap();
    Listener { tls: Some(tls), ..config.listeners[0].clone() }
}

/// The suites that can be configured are those of the library.
#[test]
fn every_suite_of_the_library_can_be_configured() {
    let of_version = |suite: &rustls::SupportedCipherSuite| match suite.tls13() {
        Some(_) => TlsVersion::V13,
        None => TlsVersion::V12,
    };
    let library: Vec<(&str, TlsVersion)> = crate::tls::crypto::ALL_CIPHER_SUITES
        .iter()
        .map(|suite| (suite.suite().as_str().unwrap(), of_version(suite)))
        .collect();
    assert_eq!(library, CIPHER_SUITES);
}
