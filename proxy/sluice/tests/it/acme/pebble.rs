//! Pebble, Let's Encrypt's test authority, and a name server that resolves every name to this host. `cargo xtask test
//! acme` builds both and passes their paths.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::support::{PATIENCE, free_port, poll};

/// Environment variables with the paths of the programs; without them the tests are skipped.
const PROGRAMS: [&str; 2] = ["SLUICE_TEST_PEBBLE", "SLUICE_TEST_CHALLTESTSRV"];

/// The key and the secret of an account that the authority knows.
pub(super) const EXTERNAL: (&str, &str) =
    ("kid-1", "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W");

/// The ports that the authority connects to, and on which our listeners therefore are.
#[derive(Clone, Copy)]
pub(super) struct Ports {
    pub(super) http: u16,
    pub(super) tls: u16,
}

impl Ports {
    pub(super) fn new() -> Self {
        let [http, tls] = free();
        Self { http, tls }
    }
}

/// An authority and its name server, killed when dropped.
pub(super) struct Pebble {
    children: Vec<Child>,
    folder: PathBuf,
    /// Its directory URL.
    pub(super) url: String,
    /// Address for changing the name server's records.
    pub(super) records: SocketAddr,
    management: SocketAddr,
}

/// Properties of an authority.
pub(super) struct Kind {
    /// Validity of its certificates, in seconds.
    pub(super) validity_s: u64,
    /// Whether it requires an external account.
    pub(super) external: bool,
    /// Percentage of the nonces that it refuses for no reason.
    pub(super) refused_nonces: u32,
}

impl Default for Kind {
    fn default() -> Self {
        Self { validity_s: 90 * 86_400, external: false, refused_nonces: 5 }
    }
}

impl Pebble {
    /// Starts one that connects to these ports; `None`, with a note on standard error, if it has not been built.
    pub(super) fn start(ports: Ports, kind: &Kind) -> Option<Self> {
        let programs = PROGRAMS.map(std::env::var_os);
        let [Some(pebble), Some(challtestsrv)] = programs else {
            let _ = writeln!(std::io::stderr(), "skipped: no Pebble; run cargo xtask test acme");
            return None;
        };
        let [listen, management, dns, records] = free();
        let folder = folder();
        write_identity(&folder);
        let config = json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{listen}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": folder.join("pebble.pem"),
            "privateKey": folder.join("pebble.key"),
            "httpPort": ports.http,
            "tlsPort": ports.tls,
            "keyAlgorithm": "ecdsa",
            "externalAccountBindingRequired": kind.external,
            "externalAccountMACKeys": {EXTERNAL.0: EXTERNAL.1},
            "domainBlocklist": ["blocked.example"],
            "retryAfter": {"authz": 0, "order": 0},
            "profiles": {"default": {"description": "the only one", "validityPeriod": kind.validity_s}},
        }});
        let file = folder.join("pebble.json");
        fs::write(&file, config.to_string()).unwrap();
        let off = ["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""];
        let mut names = Command::new(challtestsrv);
        names.args(off).args(["-dnsserver", &format!("127.0.0.1:{dns}")]);
        names.args(["-management", &format!("127.0.0.1:{records}")]);
        let mut authority = Command::new(pebble);
        authority.arg("-config").arg(&file).args(["-dnsserver", &format!("127.0.0.1:{dns}")]);
        // It validates at once, and never reuses an earlier validation.
        authority.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0");
        authority.env("PEBBLE_WFE_NONCEREJECT", kind.refused_nonces.to_string());
        let children = [names, authority].map(|command| spawn(command, &folder));
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        for port in [listen, management, records] {
            poll("Pebble", || TcpStream::connect(at(port)).ok());
        }
        let url = format!("https://127.0.0.1:{listen}/dir");
        let (records, management) = (at(records), at(management));
        Some(Self { children: children.into(), folder, url, records, management })
    }

    /// The CA of its own address.
    pub(super) fn ca_file(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// A path for files that outlive a proxy.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Its log.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Sets the renewal information of the first certificate of a PEM.
    pub(super) fn set_renewal_info(&self, pem: &str, answer: &str) {
        let file = self.path("renewal.json");
        fs::write(&file, json!({"Certificate": pem, "ARIResponse": answer}).to_string()).unwrap();
        let url = format!("https://{}/set-renewal-info/", self.management);
        let status =
            Command::new("curl").args(["-skf", "-d", &format!("@{}", file.display()), &url]).status();
        assert!(status.unwrap().success());
    }

    /// The root of its certificates.
    pub(super) fn root(&self) -> CertificateDer<'static> {
        use rustls::pki_types::pem::PemObject;
        let mut stream = connect(self.management, "127.0.0.1").unwrap();
        stream.write_all(b"GET /roots/0 HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        // Go sometimes closes without a proper end.
        let _ = stream.read_to_end(&mut answer);
        CertificateDer::from_pem_slice(&answer).unwrap()
    }

    /// `acme` of a configuration that uses it.
    pub(super) fn config(&self) -> Value {
        json!({
            "terms_agreed": true,
            "email": "ops@a.example",
            "directory": self.url,
            "ca_file": self.ca_file(),
            "state_folder": self.path("state"),
            "retry_first_ms": 300,
            "retry_max_ms": 1000,
        })
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the authority's log:\n{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("sluice-pebble-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn spawn(mut command: Command, folder: &Path) -> Child {
    let log = fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
    let both = (log.try_clone().unwrap(), log);
    command.stdin(Stdio::null()).stdout(both.0).stderr(both.1).spawn().unwrap()
}

/// Different ports that are free now.
fn free<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port())
}

/// The certificate of the authority's own address, and its CA.
fn write_identity(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "of a test");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    fs::write(folder.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    fs::write(folder.join("pebble.pem"), own.pem()).unwrap();
    fs::write(folder.join("pebble.key"), key.serialize_pem()).unwrap();
}

/// The certificate that a server presents for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) issuer: String,
    pub(super) names: Vec<String>,
}

impl Shown {
    /// Whether an authority issued it for this name.
    pub(super) fn is_issued_for(&self, name: &str) -> bool {
        self.issuer.contains("Pebble") && self.names == [name]
    }
}

/// Connects and returns the certificate; `None` if the handshake fails.
pub(super) fn look(port: u16, name: &str) -> Option<Shown> {
    let stream = connect(([127, 0, 0, 1], port).into(), name)?;
    let chain: Vec<_> = stream.conn.peer_certificates()?.iter().map(|one| one.clone().into_owned()).collect();
    let (_, leaf) = X509Certificate::from_der(&chain[0]).unwrap();
    let names =
        leaf.subject_alternative_name().unwrap().into_iter().flat_map(|names| &names.value.general_names);
    let names = names.map(|name| name.to_string().replace("DNSName(", "").replace(')', "")).collect();
    let issuer = leaf.issuer().to_string();
    Some(Shown { issuer, names, chain })
}

/// A session with any server.
fn connect(address: SocketAddr, name: &str) -> Option<StreamOwned<ClientConnection, TcpStream>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).ok()?;
    }
    Some(StreamOwned::new(connection, stream))
}

/// Accepts every certificate: the tests check it themselves.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
