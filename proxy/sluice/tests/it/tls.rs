//! Listeners with TLS, tested with rustls's client, which verifies certificates.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use serde_json::{Value, json};
use sha2::Digest;

use crate::support::{Origin, Proxy, Setup, Wire, assert_same, ok, pattern, poll};

const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
const GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// An authority that its clients trust.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// A certificate and its key.
type Shown = (CertificateDer<'static>, PrivateKeyDer<'static>);

impl Authority {
    fn new() -> Self {
        Self::named("Authority of a test")
    }

    fn named(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    fn sign(&self, names: &[&str]) -> (rcgen::Certificate, KeyPair) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, "somebody");
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Writes NAME.pem and NAME.key into the folder, and returns their configuration.
    fn write(&self, folder: &Path, name: &str, names: &[&str]) -> Value {
        let (certificate, key) = self.sign(names);
        let [cert, next] = [format!("{name}.pem"), "next".to_owned()].map(|name| folder.join(name));
        let key_file = folder.join(format!("{name}.key"));
        for (file, text) in [(&key_file, key.serialize_pem()), (&cert, certificate.pem())] {
            std::fs::write(&next, text).unwrap();
            std::fs::rename(&next, file).unwrap();
        }
        json!({"cert": cert, "key": key_file})
    }

    fn client_certificate(&self) -> Shown {
        let (certificate, key) = self.sign(&["client.example"]);
        (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        shown: Option<Shown>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
        let builder = builder.with_protocol_versions(versions).unwrap().with_root_certificates(roots);
        Arc::new(match shown {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
        })
    }
}

/// A proxy with a listener `main` that terminates TLS for a.example, and another one, `plain`.
fn start(setup: Setup, authority: &Authority, keys: Value) -> Option<Proxy> {
    let mut tls = json!({"certificates": [authority.write(&setup.folder, "a", &["a.example"])]});
    tls.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let listeners = json!([
        {"name": "main", "address": "127.0.0.1:0", "tls": tls, "hsts": {"max_age_s": 60}},
        {"name": "plain", "address": "127.0.0.1:0"},
    ]);
    setup.with("listeners", listeners).start()
}

fn connect(proxy: &Proxy, client: &Arc<ClientConfig>) -> Wire {
    Wire::connect_tls(proxy.address_of("main"), "a.example", client).unwrap()
}

fn failures(proxy: &Proxy, reason: &str) -> f64 {
    proxy.metric(&format!("sluice_tls_handshake_failures_total{{reason=\"{reason}\"}}"))
}

fn handshakes(proxy: &Proxy, version: &str, resumed: &str) -> f64 {
    proxy.metric(&format!("sluice_tls_handshakes_total{{version=\"{version}\",resumed=\"{resumed}\"}}"))
}

#[test]
fn requests_over_tls_are_forwarded_as_https() {
    let (origin, authority) = (Origin::saying("hi"), Authority::new());
    let setup = Setup::to_origin(&origin).with("workers", 2);
    let Some(proxy) = start(setup, &authority, json!({})) else { return };
    for (version, word) in [(&TLS12, "1.2"), (&TLS13, "1.3")] {
        let client = authority.client(&[version], None);
        for resumed in [false, true, true, true] {
            let mut wire = connect(&proxy, &client);
            for _ in 0..3 {
                let answer = wire.ask(GET);
                assert_eq!((answer.status(), answer.text()), (200, "hi"));
                assert_eq!(answer.get("strict-transport-security"), Some("max-age=60"));
            }
            assert_eq!(origin.last().get("x-forwarded-proto"), Some("https"));
            let kind = wire.session().handshake_kind();
            assert_eq!(kind == Some(HandshakeKind::Resumed), resumed, "by either worker: {kind:?}");
        }
        assert_eq!((handshakes(&proxy, word, "no"), handshakes(&proxy, word, "yes")), (1.0, 3.0));
    }
    let refused = connect(&proxy, &authority.client(BOTH, None)).ask("GET /\r\n\r\n");
    assert_eq!((refused.status(), refused.get("strict-transport-security")), (400, Some("max-age=60")));
    let plain = Wire::connect(proxy.address_of("plain")).ask(GET);
    assert_eq!((plain.status(), plain.get("strict-transport-security")), (200, None));
    assert_eq!(origin.last().get("x-forwarded-proto"), Some("http"));
}

#[test]
fn large_bodies_are_unchanged_in_both_directions() {
    let authority = Authority::new();
    let origin = Origin::answering(|request| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len());
        [head.into_bytes(), request.body.clone()].concat()
    });
    let Some(proxy) = start(Setup::to_origin(&origin), &authority, json!({})) else { return };
    let body = pattern(300_000);
    for version in BOTH {
        let mut wire = connect(&proxy, &authority.client(&[version], None));
        for _ in 0..3 {
            let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
            wire.send([head.as_bytes(), &body].concat());
            assert_same(&wire.response().body, &body);
        }
    }
}

#[test]
fn each_name_gets_its_certificate_and_renewal_keeps_connections() {
    let (origin, authority) = (Origin::saying("hi"), Authority::new());
    let setup = Setup::to_origin(&origin);
    let folder = setup.folder.clone();
    let wild = authority.write(&folder, "wild", &["*.b.example"]);
    let tls = json!({
        "certificates": [authority.write(&folder, "a", &["a.example"]), wild],
        "watch_interval_ms": 50,
    });
    let Some(proxy) = start(setup, &authority, tls) else { return };
    let client = authority.client(BOTH, None);
    let shown = |name: &str| {
        let wire = Wire::connect_tls(proxy.address_of("main"), name, &client)?;
        Ok::<_, std::io::Error>(wire.session().peer_certificates().unwrap()[0].clone())
    };
    let [a, b] = ["a.example", "X.b.example"].map(|name| shown(name).unwrap());
    assert_ne!(a, b);
    assert!(shown("x.y.b.example").is_err(), "the first certificate, which is not valid for it");
    let mut kept = connect(&proxy, &client);
    authority.write(&folder, "wild", &["*.b.example", "c.example"]);
    poll("the new certificate", || shown("c.example").ok());
    assert_eq!(kept.ask(GET).text(), "hi", "the connection is kept");
    assert_eq!(shown("a.example").unwrap(), a);
    let mut again = connect(&proxy, &client);
    again.ask(GET);
    assert_eq!(again.session().handshake_kind(), Some(HandshakeKind::Resumed));
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    assert_eq!(kept.ask(GET).text(), "hi");
    let mut again = connect(&proxy, &client);
    again.ask(GET);
    assert_eq!(again.session().handshake_kind(), Some(HandshakeKind::Resumed));
}

/// The origin's fields about the client's certificate.
fn told(origin: &Origin) -> Vec<(String, String)> {
    let fields = origin.last().fields.into_iter();
    let mut told: Vec<_> = fields.filter(|(name, _)| name.to_ascii_lowercase().contains("client")).collect();
    told.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
    told
}

const LIES: &str = "GET / HTTP/1.1\r\nHost: a.example\r\nX-Client-Cert-Verified: SUCCESS\r\nX_Client_Cert_Subject: CN=root\r\n\
                    X-Client-Cert-Issuer: CN=me\r\nClient-Cert: :AAAA:\r\nConnection: X-Client-Cert-Fingerprint\r\n\r\n";

#[test]
fn only_sluice_sets_client_certificate_fields() {
    let (origin, authority) = (Origin::saying("hi"), Authority::new());
    let setup = Setup::to_origin(&origin);
    let ca = setup.file("ca.pem", &authority.certificate.pem());
    let auth = |mode: &str| json!({"client_auth": {"mode": mode, "ca_file": ca}});
    let Some(proxy) = start(setup, &authority, auth("optional")) else { return };
    let none = [("x-client-cert-verified".to_owned(), "NONE".to_owned())];
    for version in BOTH {
        let client = authority.client(&[version], Some(authority.client_certificate()));
        for _ in 0..2 {
            assert_eq!(connect(&proxy, &client).ask(LIES).status(), 200);
            let told = told(&origin);
            let names: Vec<&str> = told.iter().map(|(name, _)| &name["x-client-cert-".len()..]).collect();
            assert_eq!(names, ["verified", "subject", "issuer", "serial", "fingerprint"]);
            let values: Vec<&str> = told.iter().map(|(_, value)| value.as_str()).collect();
            assert_eq!(values[..2], ["SUCCESS", "CN=somebody"]);
            assert_eq!(values[2], "CN=Authority of a test");
        }
        assert_eq!(connect(&proxy, &authority.client(&[version], None)).ask(LIES).status(), 200);
        // Authorisation depends on the certificate presented for the host of the handshake.
        let elsewhere = LIES.replacen("a.example", "b.example", 1);
        assert_eq!(connect(&proxy, &client).ask(elsewhere).status(), 421);
        assert_eq!(told(&origin), none);
    }
    assert_eq!(Wire::connect(proxy.address_of("plain")).ask(LIES).status(), 200);
    assert_eq!(told(&origin), [], "the same application is behind it");
    let mut config = proxy.config.clone();
    config["listeners"][0]["tls"]["client_auth"]["mode"] = "required".into();
    assert_eq!(proxy.reload(&config).0, Some(0));
    for (count, version) in (1..).zip(BOTH) {
        let nobody =
            Wire::connect_tls(proxy.address_of("main"), "a.example", &authority.client(&[version], None));
        // With TLS 1.3 the client's handshake ends before it is refused.
        assert!(nobody.and_then(|mut wire| wire.try_send(GET).and_then(|()| wire.try_head())).is_err());
        poll("the count", || {
            (failures(&proxy, "client_certificate_missing") == f64::from(count)).then_some(())
        });
    }
    let stranger = Authority::new();
    let client = authority.client(BOTH, Some(stranger.client_certificate()));
    let outcome = Wire::connect_tls(proxy.address_of("main"), "a.example", &client);
    assert!(outcome.and_then(|mut wire| wire.try_head()).is_err());
    poll("the count", || (failures(&proxy, "client_certificate_unknown") == 1.0).then_some(()));
}

#[test]
fn a_route_takes_only_the_certificates_that_it_names() {
    let (origin, authority) = (Origin::saying("hi"), Authority::new());
    let setup = Setup::to_origin(&origin);
    let ca = setup.file("ca.pem", &authority.certificate.pem());
    let (mine, other) = (authority.client_certificate(), authority.client_certificate());
    let digest = data_encoding::HEXUPPER.encode(&sha2::Sha256::digest(&mine.0));
    let colons =
        digest.as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair)).collect::<Vec<_>>().join(":");
    let certificate = |wanted: Value| json!({"certificate": wanted});
    let setup = setup.with(
        "routes",
        json!([
            {"cluster": "default", "path": "/open"},
            {"cluster": "default", "path": "/any", "auth": certificate(json!({})),
             "request_headers": {"set": {"X-User": "{auth_user}"}}},
            {"cluster": "default", "path": "/subject", "auth": certificate(json!({"subjects": ["CN=somebody"]}))},
            {"cluster": "default", "path": "/name", "auth": certificate(json!({"names": ["CLIENT.example"]}))},
            {"cluster": "default", "path": "/digest", "auth": certificate(json!({"fingerprints": [colons]}))},
            {"cluster": "default", "auth":
             certificate(json!({"subjects": ["CN=some"], "names": ["example"], "fingerprints": ["0".repeat(64)]}))},
        ]),
    );
    let auth = json!({"client_auth": {"mode": "optional", "ca_file": ca}});
    let Some(proxy) = start(setup, &authority, auth) else { return };
    let ask = |shown: Option<Shown>, path: &str| {
        let client = authority.client(BOTH, shown);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: a.example\r\nX-User: root\r\nX-Client-Cert-Verified: SUCCESS\r\n\
             X-Client-Cert-Subject: CN=somebody\r\n\r\n"
        );
        connect(&proxy, &client).ask(request).status()
    };
    let shown = |shown: &Shown| Some((shown.0.clone(), shown.1.clone_key()));
    for (path, none, first, second) in [
        ("/open", 200, 200, 200),
        ("/any", 403, 200, 200),
        ("/subject", 403, 200, 200),
        ("/name", 403, 200, 200),
        ("/digest", 403, 200, 403),
        ("/", 403, 403, 403),
    ] {
        let got = (ask(None, path), ask(shown(&mine), path), ask(shown(&other), path));
        assert_eq!(got, (none, first, second), "{path}");
        if path == "/any" {
            assert_eq!(origin.last().all("x-user"), ["CN=somebody"]);
        }
    }
    // Nobody can show a certificate without TLS.
    let mut plain = Wire::connect(proxy.address_of("plain"));
    assert_eq!(plain.ask("GET /any HTTP/1.1\r\nHost: a.example\r\n\r\n").status(), 403);
    assert_eq!(proxy.outcome("/any"), (403, "certificate_refused".to_owned()));
}

#[test]
fn incomplete_handshakes_time_out() {
    let (origin, authority) = (Origin::saying("hi"), Authority::new());
    let keys = json!({"handshake_timeout_ms": 200});
    let Some(impatient) = start(Setup::to_origin(&origin), &authority, keys) else { return };
    let mut silent = Wire::connect(impatient.address_of("main"));
    silent.expect_end();
    poll("the count", || (failures(&impatient, "timed_out") == 1.0).then_some(()));
    let keys = json!({"min_version": "1.3"});
    let Some(proxy) = start(Setup::to_origin(&origin), &authority, keys) else { return };
    let mut plain = Wire::connect(proxy.address_of("main"));
    plain.send(GET);
    let (bytes, _) = plain.rest();
    assert!(!bytes.starts_with(b"HTTP"), "{:?}", String::from_utf8_lossy(&bytes));
    poll("the count", || (failures(&proxy, "not_tls") == 1.0).then_some(()));
    let old = Wire::connect_tls(proxy.address_of("main"), "a.example", &authority.client(&[&TLS12], None));
    assert!(old.is_err());
    poll("the count", || (failures(&proxy, "no_shared_version") == 1.0).then_some(()));
    let mistrustful = Authority::named("Another").client(BOTH, None);
    assert!(Wire::connect_tls(proxy.address_of("main"), "a.example", &mistrustful).is_err());
    poll("the count", || (failures(&proxy, "certificate_refused") == 1.0).then_some(()));
    assert_eq!(connect(&proxy, &authority.client(BOTH, None)).ask(GET).text(), "hi");
}

#[test]
fn handshakes_are_limited() {
    let (origin, authority) = (Origin::saying("hi"), Authority::new());
    let Some(proxy) = start(Setup::to_origin(&origin), &authority, json!({"handshakes_max": 1})) else {
        return;
    };
    let client = authority.client(BOTH, None);
    // A silent client takes no slot.
    let _silent = Wire::connect(proxy.address_of("main"));
    assert_eq!(connect(&proxy, &client).ask(GET).text(), "hi");
    let mut holder = Wire::connect(proxy.address_of("main"));
    holder.send("\x16\x03\x01");
    poll("a connection too many", || {
        Wire::connect_tls(proxy.address_of("main"), "a.example", &client).is_err().then_some(())
    });
    assert!(failures(&proxy, "too_many") >= 1.0);
    drop(holder);
    let mut wire = poll("room", || Wire::connect_tls(proxy.address_of("main"), "a.example", &client).ok());
    assert_eq!(wire.ask(GET).text(), "hi");
    connect(&proxy, &client);
}

#[test]
fn tunnels_work_over_tls() {
    let authority = Authority::new();
    let echo = Origin::playing(|mut peer| {
        loop {
            let bytes = peer.take(4);
            if peer.try_send(bytes).is_err() {
                return;
            }
        }
    });
    let setup = Setup::to_origin(&echo);
    let certificate = authority.write(&setup.folder, "a", &["a.example"]);
    let listener = json!([{
        "name": "main", "address": "127.0.0.1:0", "protocol": "tcp", "cluster": "default",
        "tls": {"certificates": [certificate]}, "proxy_protocol": "v1",
    }]);
    let Some(proxy) = setup.with("listeners", listener).without("routes").start() else { return };
    // The PROXY protocol header precedes TLS, unencrypted.
    let socket = std::net::TcpStream::connect(proxy.address()).unwrap();
    let mut wire = Wire::from(socket);
    wire.send("PROXY TCP4 192.0.2.7 192.0.2.8 1000 443\r\n");
    let mut wire = wire.secured("a.example", &authority.client(BOTH, None)).unwrap();
    for word in ["ping", "pong"] {
        wire.send(word);
        assert_eq!(wire.take(4), word.as_bytes());
    }
}

#[test]
fn a_drain_finishes_requests_and_sends_close_notify() {
    let authority = Authority::new();
    let origin = Origin::answering(|_| ok("last"));
    let Some(mut proxy) = start(Setup::to_origin(&origin), &authority, json!({})) else { return };
    let client = authority.client(BOTH, None);
    let mut idle = connect(&proxy, &client);
    assert_eq!(idle.ask(GET).text(), "last");
    proxy.signal(Signal::SIGTERM);
    // An end without close_notify would be an error.
    idle.expect_end();
    assert!(proxy.wait().success());
}

#[test]
fn a_handshake_under_way_is_finished_while_draining() {
    let authority = Authority::new();
    let origin = Origin::answering(|_| ok("last"));
    let Some(mut proxy) = start(Setup::to_origin(&origin), &authority, json!({})) else { return };
    let client = authority.client(BOTH, None);
    let name = "a.example".try_into().unwrap();
    let mut session = rustls::ClientConnection::new(Arc::clone(&client), name).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    let mut socket = TcpStream::connect(proxy.address()).unwrap();
    let (first, rest) = hello.split_at(hello.len() / 2);
    socket.write_all(first).unwrap();
    // A complete exchange on another connection of the single worker proves that it has seen these bytes.
    let mut idle = connect(&proxy, &client);
    assert_eq!(idle.ask(GET).text(), "last");
    proxy.signal(Signal::SIGTERM);
    idle.expect_end();
    socket.write_all(rest).unwrap();
    let mut secured = rustls::Stream::new(&mut session, &mut socket);
    secured.write_all(GET.as_bytes()).unwrap();
    let mut answer = String::new();
    secured.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("last"), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
    drop(socket);
    assert!(proxy.wait().success());
}
