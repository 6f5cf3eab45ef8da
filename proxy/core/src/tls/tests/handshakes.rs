//! Handshakes with rustls's client, in memory.

use crate::tls::crypto;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, HandshakeKind, ServerConfig,
    ServerConnection, SignatureScheme, SupportedProtocolVersion,
};
use sluice_config::{ClientAuth, ClientAuthMode, TlsVersion};

use super::super::set::Set;
use super::super::store::CHALLENGE_PROTOCOL;
use super::super::{Handshake, HandshakeFailure, Terminator, now_unix_s};
use super::*;

/// Accepts any certificate: the tests check which one is served.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        crypto::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

fn client(versions: &[&'static SupportedProtocolVersion], identity: Option<&Made>) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::default_provider()));
    let builder = builder.with_protocol_versions(versions).unwrap();
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Trusting));
    match identity {
        None => builder.with_no_client_auth(),
        Some(made) => {
            let key = PrivateKeyDer::try_from(made.key.serialize_der()).unwrap();
            builder.with_client_auth_cert(vec![made.der.clone().into()], key).unwrap()
        }
    }
}

/// Moves bytes until neither side has any left; returns the server's result.
fn shake(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    name: &str,
) -> Result<(ClientConnection, ServerConnection), Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut server = ServerConnection::new(Arc::clone(server)).unwrap();
    while client.wants_write() || server.wants_write() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &bytes[..]).unwrap();
        server.process_new_packets()?;
        bytes.clear();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut &bytes[..]).unwrap();
        client.process_new_packets()?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok((client, server))
}

fn failure(client: ClientConfig, terminator: &Terminator) -> HandshakeFailure {
    let outcome = shake(&Arc::new(client), terminator.server_config(), "a.example");
    HandshakeFailure::from(&outcome.map(drop).unwrap_err())
}

fn http() -> Vec<Vec<u8>> {
    vec![b"http/1.1".to_vec()]
}

/// A terminator with one certificate for a.example.
fn terminator(folder: &Folder, change: impl FnOnce(&mut Tls)) -> Terminator {
    let pair = folder.write_pair("a", &made(&["a.example"]));
    let mut tls = tls(vec![pair_of(&pair.cert, &pair.key)]);
    change(&mut tls);
    let terminator = Terminator::new(&tls, http(), None, None).unwrap();
    let (set, _) = Set::read(&tls.certificates, &Set::default(), now_unix_s());
    terminator.store().replace(Arc::new(set), now_unix_s());
    terminator
}

#[test]
fn both_versions_work_and_resume() {
    let folder = Folder::new();
    let terminator = terminator(&folder, |_| {});
    for (version, word) in [(&TLS12, TlsVersion::V12), (&TLS13, TlsVersion::V13)] {
        let client = Arc::new(client(&[version], None));
        for resumed in [false, true] {
            let (_, server) = shake(&client, terminator.server_config(), "a.example").unwrap();
            assert_eq!(Handshake::done(&server), Handshake::Done { version: word, resumed });
        }
    }
}

#[test]
fn without_tickets_every_handshake_is_full() {
    let folder = Folder::new();
    let terminator = terminator(&folder, |tls| tls.session_tickets = false);
    for (version, word) in [(&TLS12, TlsVersion::V12), (&TLS13, TlsVersion::V13)] {
        let client = Arc::new(client(&[version], None));
        for _ in 0..3 {
            let (_, server) = shake(&client, terminator.server_config(), "a.example").unwrap();
            assert_eq!(Handshake::done(&server), Handshake::Done { version: word, resumed: false });
        }
    }
}

#[test]
fn sessions_survive_a_reload_that_changes_nothing_negotiated() {
    let folder = Folder::new();
    let before = terminator(&folder, |_| {});
    let client = Arc::new(client(&[&TLS13], None));
    shake(&client, before.server_config(), "a.example").unwrap();
    let same = Tls { handshakes_max: 7, ..before.config().clone() };
    let same = Terminator::new(&same, http(), None, Some(&before)).unwrap();
    let (again, _) = shake(&client, same.server_config(), "a.example").unwrap();
    assert_eq!(again.handshake_kind(), Some(HandshakeKind::Resumed));
    let other = Tls { min_version: TlsVersion::V13, ..before.config().clone() };
    let other = Terminator::new(&other, http(), None, Some(&before)).unwrap();
    let (again, _) = shake(&client, other.server_config(), "a.example").unwrap();
    assert_ne!(again.handshake_kind(), Some(HandshakeKind::Resumed));
}

#[test]
fn a_client_with_nothing_in_common_is_refused_with_a_reason() {
    let folder = Folder::new();
    let newest = terminator(&folder, |tls| tls.min_version = TlsVersion::V13);
    assert_eq!(failure(client(&[&TLS12], None), &newest), HandshakeFailure::NoSharedVersion);
    let suites = |tls: &mut Tls| tls.cipher_suites = vec!["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()];
    let rsa_only = terminator(&folder, suites);
    assert_eq!(failure(client(&[&TLS12], None), &rsa_only), HandshakeFailure::NoSharedCipher);
    let mut speaks_else = client(&[&TLS13], None);
    speaks_else.alpn_protocols = vec![b"imap".to_vec()];
    let any = terminator(&folder, |_| {});
    assert_eq!(failure(speaks_else, &any), HandshakeFailure::NoSharedProtocol);
    let mut server = ServerConnection::new(Arc::clone(any.server_config())).unwrap();
    server.read_tls(&mut &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..]).unwrap();
    let error = server.process_new_packets().unwrap_err();
    assert_eq!(HandshakeFailure::from(&error), HandshakeFailure::NotTls);
}

#[test]
fn a_challenge_gets_only_the_challenge_certificate() {
    let folder = Folder::new();
    let terminator = terminator(&folder, |_| {});
    let mut server = ServerConfig::clone(terminator.server_config());
    server.alpn_protocols.push(CHALLENGE_PROTOCOL.to_vec());
    let server = Arc::new(server);
    let mut client = client(&[&TLS13], None);
    client.alpn_protocols = vec![CHALLENGE_PROTOCOL.to_vec()];
    let client = Arc::new(client);
    let error = shake(&client, &server, "a.example").map(drop).unwrap_err();
    assert_eq!(HandshakeFailure::from(&error), HandshakeFailure::NoCertificate);
    let answer = made(&["a.example"]);
    terminator.store().begin_challenge("a.example", &certified(&answer));
    let (client, _) = shake(&client, &server, "a.example").unwrap();
    assert_eq!(client.peer_certificates().unwrap()[0].as_ref(), answer.der);
}

#[test]
fn clients_are_admitted_by_their_certificates() {
    let folder = Folder::new();
    let (issuer, root) = authority("Clients");
    let known = signed(&params(&["client.example"]), &issuer);
    let stranger = made(&["client.example"]);
    let mut old = params(&["client.example"]);
    (old.not_before, old.not_after) = (rcgen::date_time_ymd(2019, 1, 1), rcgen::date_time_ymd(2020, 1, 1));
    let old = signed(&old, &issuer);
    let ca_file = folder.write("ca.crt", root.pem());
    let auth = |mode| ClientAuth { mode, ca_file: Some(ca_file.clone()) };
    let required = terminator(&folder, |tls| tls.client_auth = auth(ClientAuthMode::Required));
    let optional = terminator(&folder, |tls| tls.client_auth = auth(ClientAuthMode::Optional));
    for version in [&TLS12, &TLS13] {
        let with = |made| client(&[version], Some(made));
        for terminator in [&required, &optional] {
            assert_eq!(failure(with(&stranger), terminator), HandshakeFailure::ClientCertificateUnknown);
            assert_eq!(failure(with(&old), terminator), HandshakeFailure::ClientCertificateExpired);
            let client = Arc::new(with(&known));
            for _ in 0..2 {
                let (_, server) = shake(&client, terminator.server_config(), "a.example").unwrap();
                assert_eq!(
                    server.peer_certificates().unwrap()[0].as_ref(),
                    known.der,
                    "whether resumed or not"
                );
            }
        }
        assert_eq!(failure(client(&[version], None), &required), HandshakeFailure::ClientCertificateMissing);
        let nobody = Arc::new(client(&[version], None));
        let (_, server) = shake(&nobody, optional.server_config(), "a.example").unwrap();
        assert!(server.peer_certificates().is_none());
    }
}

#[test]
fn another_authority_ends_old_sessions() {
    let folder = Folder::new();
    let [(issuer, root), (_, other_root)] = ["One", "Two"].map(authority);
    let ca_file = folder.write("ca.crt", root.pem());
    let auth = ClientAuth { mode: ClientAuthMode::Optional, ca_file: Some(ca_file) };
    let before = terminator(&folder, |tls| tls.client_auth = auth);
    let client = Arc::new(client(&[&TLS13], Some(&signed(&params(&["c.example"]), &issuer))));
    shake(&client, before.server_config(), "a.example").unwrap();
    folder.write("ca.crt", other_root.pem());
    let after = Terminator::new(before.config(), http(), None, Some(&before)).unwrap();
    assert!(shake(&client, after.server_config(), "a.example").is_err());
}

#[test]
fn concurrent_handshakes_are_limited() {
    let folder = Folder::new();
    let terminator = terminator(&folder, |tls| tls.handshakes_max = 2);
    let one = terminator.begin_handshake();
    let two = terminator.begin_handshake();
    assert!(one.is_some() && two.is_some());
    assert!(terminator.begin_handshake().is_none());
    drop(one);
    let again = Terminator::new(terminator.config(), http(), None, Some(&terminator)).unwrap();
    let three = again.begin_handshake();
    assert!(three.is_some() && again.begin_handshake().is_none(), "one limit for both");
}
