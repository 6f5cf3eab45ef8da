//! Where TLS is used in a case, and the certificate for it.

use std::net::SocketAddr;
use std::path::PathBuf;

use sluice_testkit::identity::Identity;

/// Which side uses TLS to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tls {
    /// None.
    None,
    /// Its clients.
    Clients,
    /// Its clients, which cannot resume a session as wrk otherwise would.
    ClientsAnew,
    /// The origin.
    Origin,
}

impl Tls {
    /// Whether clients use TLS.
    pub(super) fn is_to_clients(self) -> bool {
        matches!(self, Self::Clients | Self::ClientsAnew)
    }
}

/// The address of an origin's TLS listener, its certificate, and which side uses TLS.
pub(super) type Secured = (SocketAddr, Identity, Tls);

/// All words of a configuration that depend on TLS; without TLS they are empty or neutral.
pub(super) fn words(identity: Option<&Identity>, tls: Tls) -> [(&'static str, String); 9] {
    let path =
        |of: fn(&Identity) -> &PathBuf| identity.map_or(String::new(), |it| of(it).display().to_string());
    let (certificate, key, both) = (path(|it| &it.certificate), path(|it| &it.key), path(|it| &it.both));
    let anew = tls == Tls::ClientsAnew;
    let clients = |text: &str| if tls.is_to_clients() { text.to_owned() } else { String::new() };
    let origin = |text: &str| if tls == Tls::Origin { text.to_owned() } else { String::new() };
    // The same version for all and, as the load generators prefer it, the same suite.
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
