//! ClientHellos as rustls sends them, and invalid ones: whole, cut, split, and malformed.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use proptest::prelude::*;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

const MAX: usize = 1 << 14;

/// The first bytes that rustls sends.
fn real(name: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

fn named(name: &str) -> ClientHello {
    ClientHello::Complete(Some(name.to_owned()))
}

fn short(bytes: &[u8]) -> Vec<u8> {
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

/// The content of a server name extension.
fn list(names: &[(u8, &[u8])]) -> Vec<u8> {
    let each = names.iter().map(|(kind, name)| [&[*kind], &short(name)[..]].concat());
    short(&each.collect::<Vec<_>>().concat())
}

/// A hello with these extensions, in one record.
fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let each = extensions.iter().map(|(kind, content)| [&kind.to_be_bytes(), &short(content)[..]].concat());
    body(&short(&each.collect::<Vec<_>>().concat()))
}

/// A hello that ends with `tail`.
fn body(tail: &[u8]) -> Vec<u8> {
    let fixed = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0]].concat();
    let message = [&fixed[..], tail].concat();
    split(&[&[1, 0][..], &short(&message)].concat(), usize::MAX)
}

/// A message in records of at most `size` bytes.
fn split(message: &[u8], size: usize) -> Vec<u8> {
    message
        .chunks(size.min(RECORD_BYTES_MAX))
        .flat_map(|piece| [&[22, 3, 1][..], &short(piece)].concat())
        .collect()
}

#[test]
fn real_hello_names_its_server() {
    assert_eq!(parse(&real("a.example"), MAX), named("a.example"));
    assert_eq!(parse(&real("A.Example"), MAX), named("a.example"));
    // An address is not a host name, so rustls sends none (RFC 6066 3).
    assert_eq!(parse(&real("127.0.0.1"), MAX), ClientHello::Complete(None));
}

#[test]
fn hello_without_server_name_is_complete() {
    assert_eq!(parse(&body(&[]), MAX), ClientHello::Complete(None), "no extensions, as before TLS 1.3");
    assert_eq!(parse(&hello(&[]), MAX), ClientHello::Complete(None));
    assert_eq!(parse(&hello(&[(16, vec![1, 2]), (0xff01, vec![0])]), MAX), ClientHello::Complete(None));
    assert_eq!(parse(&hello(&[(0, list(&[(0, b"x.y.")]))]), MAX), named("x.y"), "a trailing dot is dropped");
}

#[test]
fn other_protocols_are_recognized_at_once() {
    let protocols: [&[u8]; 6] =
        [b"G", b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0", b"\x16\x05", b"\x80\x2e\x01", b"\x15\x03\x01"];
    for bytes in protocols {
        assert_eq!(parse(bytes, MAX), ClientHello::NotTls, "{bytes:?}");
    }
    for bytes in [&b""[..], b"\x16", b"\x16\x03", b"\x16\x03\x01\x02"] {
        assert_eq!(parse(bytes, MAX), ClientHello::Partial, "{bytes:?}");
    }
}

#[test]
fn ambiguous_hello_is_malformed() {
    let one = list(&[(0, b"a.test")]);
    let cases = [
        ("the extension twice", hello(&[(0, one.clone()), (0, one.clone())])),
        ("two names", hello(&[(0, list(&[(0, b"a.test"), (0, b"b.test")]))])),
        ("no name", hello(&[(0, list(&[]))])),
        ("an empty name", hello(&[(0, list(&[(0, b"")]))])),
        ("only a dot", hello(&[(0, list(&[(0, b".")]))])),
        ("another type of name", hello(&[(0, list(&[(1, b"a.test")]))])),
        ("a blank in the name", hello(&[(0, list(&[(0, b"a test")]))])),
        ("a NUL in the name", hello(&[(0, list(&[(0, b"a.test\0.b")]))])),
        ("too long a name", hello(&[(0, list(&[(0, &[b'a'; 254])]))])),
        ("bytes after the list", hello(&[(0, [&one[..], b"x"].concat())])),
        ("bytes after the extensions", body(&[0, 0, 7])),
        ("a truncated extension", body(&[0, 3, 0, 0, 0])),
        ("a ServerHello", split(&[2, 0, 0, 1, 0], 9)),
        ("an empty record", b"\x16\x03\x01\0\0".to_vec()),
        ("too large a record", b"\x16\x03\x01\x40\x01".to_vec()),
        ("an alert inside the message", [&split(&[1, 0, 0, 9], 4)[..], b"\x15\x03\x01\0\x02\x01\0"].concat()),
    ];
    for (what, bytes) in cases {
        assert_eq!(parse(&bytes, MAX), ClientHello::Malformed, "{what}");
    }
}

#[test]
fn hello_size_limit_is_exact() {
    let whole = real("a.example");
    assert_eq!(parse(&whole, whole.len()), named("a.example"));
    assert_eq!(parse(&whole, whole.len() - 1), ClientHello::TooLarge);
    // The length field shows it, long before the message has arrived.
    assert_eq!(parse(&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff], MAX), ClientHello::TooLarge);
    assert_eq!(parse(&[22, 3, 1, 0x40, 0, 1, 0, 0x20, 0], MAX), ClientHello::Partial);
    let behind = [&whole[..], &[0; 9]].concat();
    assert_eq!(parse(&behind, whole.len()), named("a.example"), "bytes after the ClientHello do not count");
}

/// More bytes never change a result other than `Partial`.
fn never_changes(bytes: &[u8]) {
    let whole = parse(bytes, MAX);
    for cut in 0..bytes.len() {
        let part = parse(&bytes[..cut], MAX);
        assert!(part == ClientHello::Partial || part == whole, "{part:?}, then {whole:?}: {bytes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn splitting_into_records_changes_nothing(size in 1usize..400, cut in 0.0..1.0f64) {
        let whole = real("some.host.example");
        let records = split(&whole[RECORD_HEADER_BYTES..], size);
        prop_assert_eq!(parse(&records, records.len()), named("some.host.example"));
        let cut = (records.len() as f64 * cut) as usize;
        prop_assert_eq!(parse(&records[..cut], records.len()), ClientHello::Partial);
    }

    #[test]
    fn more_bytes_keep_the_result(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..600, byte: u8) {
        never_changes(&bytes);
        let mut hello = hello(&[(0, list(&[(0, b"a.test")])), (16, vec![0; 40])]);
        let at = at % hello.len();
        hello[at] = byte;
        never_changes(&hello);
    }
}
