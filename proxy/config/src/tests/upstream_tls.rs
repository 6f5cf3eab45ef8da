//! TLS to endpoints: how it is enabled, and what is a mistake.

use super::super::*;
use super::{mistakes, read};

fn cluster(keys: &str) -> String {
    format!("listeners: [{{address: '127.0.0.1:80'}}]\nclusters: {{api: {{{keys}}}}}\n")
}

fn tls(keys: &str) -> Option<UpstreamTls> {
    read(&cluster(keys)).clusters["api"].tls.clone()
}

#[test]
fn upstream_tls_is_enabled_by_key_or_by_https_endpoints() {
    assert_eq!(tls("endpoints: ['a:1']"), None);
    assert_eq!(tls("endpoints: ['a:1'], tls: off"), None);
    assert_eq!(tls("endpoints: ['a:1'], tls: {}"), Some(UpstreamTls::default()));
    let config = read(&cluster(
        "endpoints: ['https://a:1', {address: 'https://[::1]/', weight: 2}, 'https://b.test']",
    ));
    let cluster = &config.clusters["api"];
    assert_eq!(cluster.tls, Some(UpstreamTls::default()));
    let addresses: Vec<_> = cluster.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
    assert_eq!(addresses, ["a:1", "[::1]:443", "b.test:443"]);
    assert_eq!(parse("out", &to_yaml(&config), &[]).unwrap(), config);
}

#[test]
fn every_upstream_tls_key_is_read() {
    let hex =
        "00:01:02:03:04:05:06:07:08:09:0A:0B:0C:0D:0E:0F:10:11:12:13:14:15:16:17:18:19:1A:1B:1C:1D:1E:1F";
    let base64 = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let all = format!(
        "endpoints: ['a:1'], tls: {{ca_file: /ca.pem, server_name: B.test, client_certificate: {{cert: /c, key: /k}}, \
         pinned_sha256: ['{hex}', '{base64}', 'sha256//{base64}'], min_version: 1.3}}"
    );
    let found = tls(&all).unwrap();
    let counting = Pin(std::array::from_fn(|index| index as u8));
    assert_eq!(found.pinned_sha256, [counting; 3]);
    assert_eq!(counting.to_string(), base64);
    let certificate = ClientCertificate { cert: "/c".into(), key: "/k".into() };
    assert_eq!((found.client_certificate, found.ca_file), (Some(certificate), Some("/ca.pem".into())));
    assert_eq!((found.server_name.as_deref(), found.min_version), (Some("b.test"), TlsVersion::V13));
    assert!(!found.danger_skip_verification);
    assert!(tls("endpoints: ['unix:/a'], tls: {server_name: '10.0.0.1', min_version: '1.2'}").is_some());
}

#[test]
fn upstream_tls_mistakes_are_reported() {
    let at = "clusters.api";
    for (keys, expected) in [
        (
            "endpoints: ['https://a:1', 'b:1']",
            format!(
                "{at}.endpoints[1]: some endpoints use https:// and others do not; use it for all or none"
            ),
        ),
        (
            "endpoints: ['https://a/x']",
            format!("{at}.endpoints[0]: \"https://a/x\" has more than a host; write https://host:port"),
        ),
        ("endpoints: ['ftp://a:1']", format!("{at}.endpoints[0]: \"ftp://a:1\" is a URL; write host:port")),
        (
            "endpoints: ['http://a:1/b']",
            format!("{at}.endpoints[0]: \"http://a:1/b\" has more than a host; write http://host:port"),
        ),
        (
            "endpoints: ['https://a:0']",
            format!("{at}.endpoints[0]: a:0 has port 0, which nothing listens on; write its port"),
        ),
        (
            "endpoints: ['https://a:1'], tls: off",
            format!("{at}.tls: the endpoints use https://; remove this, or their https://"),
        ),
        (
            "endpoints: ['unix:/a'], tls: {}",
            format!(
                "{at}.endpoints: unix:/a has no name to verify a certificate against; write tls.server_name"
            ),
        ),
        (
            "endpoints: ['a:1'], tls: {server_name: 'a:1'}",
            format!(
                "{at}.tls.server_name: \"a:1\" is not a host; write a name or an address, without a port"
            ),
        ),
        (
            "endpoints: ['a:1'], tls: {client_certificate: {cert: /c}}",
            format!("{at}.tls.client_certificate: key is missing; write the path of a PEM file"),
        ),
        (
            "endpoints: ['a:1'], tls: {pinned_sha256: [abc]}",
            format!(
                "{at}.tls.pinned_sha256[0]: \"abc\" is not a SHA-256 digest; write 44 characters of base64 \
                 or 64 of hexadecimal"
            ),
        ),
        (
            "endpoints: ['a:1'], tls: {min_version: 1.1}",
            format!("{at}.tls.min_version: TLS 1.1 is deprecated (RFC 8996); write \"1.2\" or \"1.3\""),
        ),
        (
            "endpoints: ['a:1'], tls: {ca_file: /a, danger_skip_verification: true}",
            format!("{at}.tls: ca_file has no effect with danger_skip_verification; remove one of them"),
        ),
        (
            "endpoints: ['a:1'], tls: {verify: off}",
            format!(
                "{at}.tls.verify: unknown key; known here: ca_file, server_name, client_certificate, pinned_sha256, min_version, danger_skip_verification"
            ),
        ),
    ] {
        let said = mistakes(&cluster(keys));
        assert!(said.len() == 1 && said[0].ends_with(&expected), "{keys}: {said:#?}");
    }
    let nested = "listeners: [{address: '127.0.0.1:80', protocol: tls-passthrough, cluster: api}]\nclusters: {api: {endpoints: ['https://a:1']}}\n";
    let said = mistakes(nested);
    assert!(
        said[0].ends_with(
            "cluster \"api\" has tls, which would encrypt the passed-through TLS again; remove its tls"
        ),
        "{said:?}"
    );
}
