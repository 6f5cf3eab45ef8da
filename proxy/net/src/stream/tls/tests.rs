//! Sessions over in-memory connections that split, stall and break.
#![allow(clippy::unwrap_used)]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use tokio::task::LocalSet;

use super::{HandshakeError, Session};
use crate::deadline::Deadline;
use crate::stream::memory::{self, Behaviour};
use crate::stream::{Reader, Stream, Writer, halves};

const CALM: Behaviour = Behaviour { seed: 7, piece_max: usize::MAX, capacity: 1 << 20, stall_of: 0 };

struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

fn identity() -> Identity {
    let made = rcgen::generate_simple_self_signed(["app.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    Identity { certificate: made.cert.der().clone(), key }
}

fn server(identity: &Identity) -> ServerConnection {
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key())
        .unwrap();
    ServerConnection::new(Arc::new(config)).unwrap()
}

fn client(trusted: &Identity, version: &'static rustls::SupportedProtocolVersion) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.certificate.clone()).unwrap();
    let config = ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("app.example").unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}

/// Both ends of a session after their handshake, the client's first.
async fn established(
    behaviour: Behaviour,
    version: &'static rustls::SupportedProtocolVersion,
) -> [Stream; 2] {
    let identity = identity();
    let (near, far) = memory::connection(behaviour);
    let near = Session::new(Stream::Memory(near), client(&identity, version), &[]);
    let far = Session::new(Stream::Memory(far), server(&identity), &[]);
    let accepting = {
        let far = Rc::clone(&far);
        tokio::task::spawn_local(async move { far.handshake().await })
    };
    near.handshake().await.unwrap();
    // The last message of the client may be sent with its first data.
    near.flush().await.unwrap();
    accepting.await.unwrap().unwrap();
    [Stream::Tls(near), Stream::Tls(far)]
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new()
        .block_on(&runtime, async { tokio::time::timeout(Duration::from_secs(3600), test).await.unwrap() })
}

fn patience() -> Deadline {
    Deadline::new(Duration::from_secs(60))
}

async fn write(writer: &mut Writer, bytes: &[u8], piece: usize) {
    let deadline = patience();
    for piece in bytes.chunks(piece) {
        writer.settle(&deadline).await.unwrap();
        writer.submit(piece.to_vec(), 0);
    }
    writer.settle(&deadline).await.unwrap();
}

async fn read(reader: &mut Reader, count: usize, capacity: usize) -> Vec<u8> {
    let mut read = Vec::new();
    while read.len() < count {
        let brought = reader.fill(capacity).await.unwrap();
        assert!(brought > 0, "ended after {} of {count}", read.len());
        read.extend_from_slice(reader.data());
        let unread = reader.data().len();
        reader.consume(unread);
    }
    read
}

fn pattern(seed: u64, count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever the network does, each side reads what the other wrote, while both write.
    #[test]
    fn both_sides_read_what_the_other_wrote(
        seed in any::<u64>(),
        piece_max in prop_oneof![1usize..40, 1000usize..100_000],
        capacity in 1usize..100_000,
        stall_of in prop_oneof![Just(0u8), 2u8..6],
        sizes in (0usize..300_000, 0usize..300_000),
        (piece, room) in (1usize..150_000, 1usize..70_000),
        older in any::<bool>(),
    ) {
        let behaviour = Behaviour { seed, piece_max, capacity, stall_of };
        let version = if older { &rustls::version::TLS12 } else { &rustls::version::TLS13 };
        // One byte at a time takes long.
        let scale = if piece_max < 40 { 10 } else { 1 };
        let (up, down) = (pattern(seed, sizes.0 / scale), pattern(!seed, sizes.1 / scale));
        run(async {
            let [near, far] = established(behaviour, version).await;
            let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (halves(near), halves(far));
            let piece = piece.max(if scale > 1 { 100 } else { 1000 });
            let (_, _, got_up, got_down) = tokio::join!(
                write(&mut near_out, &up, piece),
                write(&mut far_out, &down, piece),
                read(&mut far_in, up.len(), room),
                read(&mut near_in, down.len(), room),
            );
            assert!(got_up == up && got_down == down);
        });
    }
}

#[test]
fn only_close_notify_is_a_proper_end() {
    run(async {
        for proper in [true, false] {
            let [near, far] = established(CALM, &rustls::version::TLS13).await;
            let (mut reader, _writer) = halves(near);
            let (_, mut writer) = halves(far);
            write(&mut writer, b"the last", 8).await;
            if proper {
                writer.stream().shutdown_write();
            }
            drop(writer);
            assert_eq!(read(&mut reader, 8, 100).await, b"the last");
            let end = reader.fill(100).await;
            match proper {
                true => assert_eq!(end.unwrap(), 0),
                false => assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof),
            }
        }
    });
}

#[test]
fn invalid_record_is_answered_with_an_alert() {
    run(async {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let [near, far] = established(CALM, version).await;
            let Stream::Tls(session) = &near else { unreachable!("the stream is a TLS session") };
            // A record of an unknown type.
            session.below().send_now(vec![99, 3, 3, 0, 1, 0]);
            let (mut reader, writer) = halves(far);
            assert_eq!(reader.fill(100).await.unwrap_err().kind(), std::io::ErrorKind::InvalidData);
            drop((reader, writer));
            let (mut reader, _writer) = halves(near);
            let error = reader.fill(100).await.unwrap_err().to_string();
            assert!(error.contains("received fatal alert"), "{error}");
        }
    });
}

#[test]
fn untrusted_server_receives_an_alert() {
    run(async {
        let (near, far) = memory::connection(CALM);
        let near = Session::new(Stream::Memory(near), client(&identity(), &rustls::version::TLS13), &[]);
        let far = Session::new(Stream::Memory(far), server(&identity()), &[]);
        let (near, far) = tokio::join!(near.handshake(), far.handshake());
        let Err(HandshakeError::Tls(rustls::Error::InvalidCertificate(_))) = near else { panic!("{near:?}") };
        let Err(HandshakeError::Tls(rustls::Error::AlertReceived(_))) = far else { panic!("{far:?}") };
    });
}

#[test]
fn invalid_or_truncated_handshake_fails() {
    run(async {
        for (said, is_end) in [(&b"GET / HTTP/1.1\r\n\r\n"[..], false), (b"", true), (b"\x16\x03\x01", true)]
        {
            let (near, far) = memory::connection(CALM);
            let far = Session::new(Stream::Memory(far), server(&identity()), said);
            let (near_in, near_out) = halves(Stream::Memory(near));
            near_out.stream().shutdown_write();
            let outcome = far.handshake().await;
            match is_end {
                true => assert!(matches!(outcome, Err(HandshakeError::Io(_))), "{outcome:?}"),
                false => assert!(matches!(outcome, Err(HandshakeError::Tls(_))), "{outcome:?}"),
            }
            drop(near_in);
        }
    });
}

/// Bytes that were read with a PROXY header belong to the session.
#[test]
fn session_starts_with_bytes_already_read() {
    run(async {
        let identity = identity();
        let (near, far) = memory::connection(CALM);
        let near = Session::new(Stream::Memory(near), client(&identity, &rustls::version::TLS13), &[]);
        let connecting = {
            let near = Rc::clone(&near);
            tokio::task::spawn_local(async move {
                near.handshake().await.unwrap();
                near.flush().await.unwrap();
            })
        };
        let (mut reader, _writer) = halves(Stream::Memory(far));
        reader.fill(64).await.unwrap();
        let (hello, start) = reader.take(Vec::new());
        let far = Session::new(reader.stream().clone(), server(&identity), &hello[start..]);
        far.handshake().await.unwrap();
        connecting.await.unwrap();
    });
}

/// A small message that is submitted during another send leaves even if no task waits for it.
#[test]
fn message_after_session_tickets_is_sent_without_polling() {
    run(async {
        let slow = Behaviour { capacity: 16, ..CALM };
        let [near, far] = established(slow, &rustls::version::TLS13).await;
        let ((mut near_in, _near_out), (mut far_in, mut far_out)) = (halves(near), halves(far));
        // The tickets are sent when there is nothing to read.
        assert!(far_in.is_silent(100));
        far_out.submit(b"hello".to_vec(), 0);
        assert_eq!(read(&mut near_in, 5, 100).await, b"hello");
    });
}
