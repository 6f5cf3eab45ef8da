//! TLS peers of the proxy, with rustls: authorities, certificates, and both ends of a connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, PublicKeyData};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    SupportedProtocolVersion,
};
use sha2::{Digest, Sha256};

/// Signs certificates; clients trust it.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key.
pub(crate) struct Identity {
    pub(crate) cert_pem: String,
    pub(crate) key_pem: String,
    /// SHA-256 of its public key information (RFC 7469 2.4) and of the whole certificate.
    pub(crate) key_sha256: [u8; 32],
    pub(crate) cert_sha256: [u8; 32],
}

impl Authority {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, format!("authority {}", COUNT.fetch_add(1, Ordering::Relaxed)));
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// A certificate for these names or addresses.
    pub(crate) fn identity(&self, names: &[&str]) -> Identity {
        self.changed_identity(names, |_| {})
    }

    /// The same, with changed parameters.
    pub(crate) fn changed_identity(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Identity {
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
            key_sha256: Sha256::digest(key.subject_public_key_info()).into(),
            cert_sha256: Sha256::digest(cert.der()).into(),
        }
    }

    /// A client that trusts this authority.
    pub(crate) fn client(&self) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        builder.with_root_certificates(self.roots()).with_no_client_auth()
    }

    /// A server that requires client certificates of this authority.
    pub(crate) fn server_for_members(&self, identity: &Identity) -> ServerConfig {
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots(), provider()).build().unwrap();
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let (chain, key) = identity.parts();
        builder.with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap()
    }
}

impl Identity {
    fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_slice_iter(self.cert_pem.as_bytes()).map(Result::unwrap).collect();
        (chain, PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).unwrap())
    }

    /// A server with this certificate.
    pub(crate) fn server(&self) -> ServerConfig {
        self.server_of(rustls::ALL_VERSIONS)
    }

    /// The same, without TLS 1.3.
    pub(crate) fn server_up_to_12(&self) -> ServerConfig {
        self.server_of(&[&rustls::version::TLS12])
    }

    fn server_of(&self, versions: &[&'static SupportedProtocolVersion]) -> ServerConfig {
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(versions).unwrap();
        let (chain, key) = self.parts();
        builder.with_no_client_auth().with_single_cert(chain, key).unwrap()
    }
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// One end of a TLS connection after its handshake.
pub(crate) enum Secure {
    Client(Box<StreamOwned<ClientConnection, TcpStream>>),
    Server(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Secure {
    /// Performs a handshake as a client.
    pub(crate) fn connect(config: &Arc<ClientConfig>, name: &str, mut stream: TcpStream) -> io::Result<Self> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut session = ClientConnection::new(Arc::clone(config), name).unwrap();
        while session.is_handshaking() {
            session.complete_io(&mut stream)?;
        }
        Ok(Self::Client(Box::new(StreamOwned::new(session, stream))))
    }

    /// Performs a handshake as a server.
    pub(crate) fn accept(config: &Arc<ServerConfig>, mut stream: TcpStream) -> io::Result<Self> {
        let mut session = ServerConnection::new(Arc::clone(config)).unwrap();
        while session.is_handshaking() {
            if let Err(error) = session.complete_io(&mut stream) {
                // Otherwise unread bytes of the other side would make the kernel reset the connection, including the
                // alert.
                let _ = stream.shutdown(Shutdown::Write);
                let _ = io::copy(&mut stream, &mut io::sink());
                return Err(error);
            }
        }
        Ok(Self::Server(Box::new(StreamOwned::new(session, stream))))
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Client(stream) => &stream.sock,
            Self::Server(stream) => &stream.sock,
        }
    }

    /// Sends close_notify (RFC 8446 6.1).
    pub(crate) fn notify(&mut self) -> io::Result<()> {
        match self {
            Self::Client(stream) => stream.conn.send_close_notify(),
            Self::Server(stream) => stream.conn.send_close_notify(),
        }
        self.flush()
    }

    /// Whether an earlier session was resumed.
    pub(crate) fn was_resumed(&self) -> bool {
        let kind = match self {
            Self::Client(stream) => stream.conn.handshake_kind(),
            Self::Server(stream) => stream.conn.handshake_kind(),
        };
        kind == Some(rustls::HandshakeKind::Resumed)
    }

    /// The server name of the client, at the server's end.
    pub(crate) fn server_name(&self) -> Option<&str> {
        match self {
            Self::Client(_) => None,
            Self::Server(stream) => stream.conn.server_name(),
        }
    }
}

impl Read for Secure {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Client(stream) => stream.read(room),
            Self::Server(stream) => stream.read(room),
        }
    }
}

impl Write for Secure {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Client(stream) => stream.write(bytes),
            Self::Server(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Client(stream) => stream.flush(),
            Self::Server(stream) => stream.flush(),
        }
    }
}
