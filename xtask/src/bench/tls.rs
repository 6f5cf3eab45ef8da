//! Where TLS is spoken in a case, and the certificate that all who speak it show.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Result;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::workspace::must;

/// Who speaks TLS to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tls {
    /// Nobody.
    None,
    /// Its clients.
    Clients,
    /// Its clients, who cannot resume a session: wrk would.
    ClientsAnew,
    /// The origin.
    Origin,
}

impl Tls {
    /// Whether clients speak it.
    pub(super) fn is_to_clients(self) -> bool {
        matches!(self, Self::Clients | Self::ClientsAnew)
    }
}

/// Where an origin speaks TLS, what it shows there, and with whom.
pub(super) type Secured = (SocketAddr, Identity, Tls);

/// A certificate for 127.0.0.1 with its key, both in files.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// The certificate, which signs itself.
    pub(crate) certificate: PathBuf,
    /// Its key, of the curve P-256: what most sites use.
    pub(crate) key: PathBuf,
    /// Both in one.
    both: PathBuf,
}

impl Identity {
    /// Makes one in `folder`.
    ///
    /// # Errors
    /// When openssl cannot.
    pub(crate) fn make(folder: &Path, openssl: &Path) -> Result<Self> {
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

    /// A client that trusts it alone.
    ///
    /// # Errors
    /// When the certificate cannot be read.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.certificate)?)?;
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Arc::new(config))
    }

    /// The words of a configuration for where TLS is spoken, all of them; those of `None` are empty.
    pub(super) fn words(identity: Option<&Self>, tls: Tls) -> [(&'static str, String); 9] {
        let path =
            |of: fn(&Self) -> &PathBuf| identity.map_or(String::new(), |it| of(it).display().to_string());
        let (certificate, key, both) = (path(|it| &it.certificate), path(|it| &it.key), path(|it| &it.both));
        let anew = tls == Tls::ClientsAnew;
        let clients = |text: &str| if tls.is_to_clients() { text.to_owned() } else { String::new() };
        let origin = |text: &str| if tls == Tls::Origin { text.to_owned() } else { String::new() };
        // The same version and, as the load generators prefer, the same suite for all.
        let nginx = format!(
            "ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3;{}",
            if anew { " ssl_session_tickets off;" } else { "" }
        );
        let no_tickets = if anew { " no-tls-tickets" } else { "" };
        let verified = format!(
            "proxy_ssl_trusted_certificate {certificate}; proxy_ssl_verify on; proxy_ssl_name localhost;"
        );
        [
            ("@SSL@", clients(" ssl http2")),
            ("@NGINX_TLS@", clients(&nginx)),
            ("@SCHEME@", if tls == Tls::Origin { "https" } else { "http" }.to_owned()),
            ("@NGINX_ORIGIN_TLS@", origin(&verified)),
            ("@HAPROXY_TLS@", clients(&format!(" ssl crt {both} alpn h2,http/1.1{no_tickets}"))),
            ("@HAPROXY_SESSIONS@", if anew { "0" } else { "20000" }.to_owned()),
            (
                "@HAPROXY_ORIGIN_TLS@",
                origin(&format!(" ssl verify required ca-file {certificate} sni str(localhost)")),
            ),
            (
                "@SLUICE_TLS@",
                clients(&format!(
                    "\n    tls: {{certificates: [{{cert: {certificate}, key: {key}}}], session_tickets: {}}}",
                    !anew
                )),
            ),
            (
                "@SLUICE_ORIGIN_TLS@",
                origin(&format!("\n    tls: {{ca_file: {certificate}, server_name: localhost}}")),
            ),
        ]
    }
}
