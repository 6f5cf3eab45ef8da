//! Early data: requests that arrive before the handshake is complete, and that somebody may have recorded.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionId, Endpoint, NoneTokenStore};
use serde_json::json;

use super::raw::{control, exchange, frame, head};
use super::{Site, raw, start_with};
use crate::support::{Origin, Setup, assert_same, pattern, until};

/// Passes what a client sends first, and holds back the rest of its handshake until it is opened.
struct Gate {
    address: SocketAddr,
    shared: Arc<GateState>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct GateState {
    is_open: AtomicBool,
    has_ended: AtomicBool,
    client: Mutex<Option<SocketAddr>>,
    /// What was passed so far, as somebody on the way would record it.
    passed: Mutex<Vec<Vec<u8>>>,
}

impl Gate {
    fn start(server: SocketAddr) -> Self {
        let [inner, outer] = [0, 1].map(|_| Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap()));
        outer.connect(server).unwrap();
        for socket in [&inner, &outer] {
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        }
        let (address, shared) = (inner.local_addr().unwrap(), Arc::<GateState>::default());
        let inward = {
            let (inner, outer, shared) = (Arc::clone(&inner), Arc::clone(&outer), Arc::clone(&shared));
            std::thread::spawn(move || shared.pass_inward(&inner, &outer))
        };
        let outward = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.pass_outward(&outer, &inner))
        };
        Self { address, shared, threads: vec![inward, outward] }
    }

    fn open(&self) {
        self.shared.is_open.store(true, Ordering::Relaxed);
    }

    fn passed(&self) -> Vec<Vec<u8>> {
        self.shared.passed.lock().unwrap().clone()
    }
}

impl GateState {
    fn pass_inward(&self, from: &UdpSocket, to: &UdpSocket) {
        let (mut buffer, mut held) = ([0; 65_536], VecDeque::new());
        while !self.has_ended.load(Ordering::Relaxed) {
            if self.is_open.load(Ordering::Relaxed) {
                held.drain(..).for_each(|datagram: Vec<u8>| _ = to.send(&datagram));
            }
            let Ok((count, sender)) = from.recv_from(&mut buffer) else { continue };
            *self.client.lock().unwrap() = Some(sender);
            let datagram = buffer[..count].to_vec();
            if self.is_open.load(Ordering::Relaxed) || is_of_first_flight(&datagram) {
                let _ = to.send(&datagram);
                self.passed.lock().unwrap().push(datagram);
            } else {
                held.push_back(datagram);
            }
        }
    }

    fn pass_outward(&self, from: &UdpSocket, to: &UdpSocket) {
        let mut buffer = [0; 65_536];
        while !self.has_ended.load(Ordering::Relaxed) {
            let Ok(count) = from.recv(&mut buffer) else { continue };
            if let Some(client) = *self.client.lock().unwrap() {
                let _ = to.send_to(&buffer[..count], client);
            }
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// Whether all packets of a datagram are of the kinds Initial and 0-RTT (RFC 9000 section 17.2).
fn is_of_first_flight(mut rest: &[u8]) -> bool {
    fn number(bytes: &[u8]) -> Option<(usize, usize)> {
        let length = 1 << (bytes.first()? >> 6);
        let first = usize::from(bytes[0] & 0x3f);
        let number =
            bytes.get(1..length)?.iter().fold(first, |number, byte| number << 8 | usize::from(*byte));
        Some((number, length))
    }
    fn packet(rest: &[u8]) -> Option<usize> {
        let kind = rest[0] >> 4 & 3;
        if rest[0] & 0x80 == 0 || kind > 1 {
            return None;
        }
        let mut at = 5;
        for _ in 0..2 {
            at += 1 + usize::from(*rest.get(at)?);
        }
        if kind == 0 {
            let (token, bytes) = number(rest.get(at..)?)?;
            at += token + bytes;
        }
        let (length, bytes) = number(rest.get(at..)?)?;
        Some(at + bytes + length)
    }
    while !rest.is_empty() {
        // Padding after a packet.
        if rest.iter().all(|byte| *byte == 0) {
            return true;
        }
        let Some(length) = packet(rest) else { return false };
        rest = rest.get(length..).unwrap_or_default();
    }
    true
}

/// A client that may send early data when it returns.
fn returning(site: &Site) -> ClientConfig {
    let mut tls = site.authority.client();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls.enable_early_data = true;
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

/// Connects once and asks, so that the client has a session and a token.
async fn visit(site: &Site, client: &ClientConfig) {
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = site.proxy.address_of("main");
    let connection = endpoint.connect_with(client.clone(), address, "a.test").unwrap().await.unwrap();
    let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
    exchange(&connection, &head("GET", "/visit", &[])).await.unwrap();
    connection.close(raw::code(0x100), b"");
    endpoint.wait_idle().await;
}

/// Returns, and may send before the handshake is complete.
fn return_to(address: SocketAddr, client: &ClientConfig) -> (Endpoint, Option<Connection>) {
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint.connect_with(client.clone(), address, "a.test").unwrap();
    (endpoint, connecting.into_0rtt().ok().map(|(connection, _)| connection))
}

fn early() -> serde_json::Value {
    json!({"http3": {"early_data": "safe"}})
}

/// The value of Early-Data of the requests with this target.
fn told(origin: &Origin, target: &str) -> Vec<Option<String>> {
    let requests = origin.requests();
    let of_target = requests.iter().filter(|request| request.target() == target);
    of_target.map(|request| request.get("early-data").map(str::to_owned)).collect()
}

fn delayed(site: &Site) -> f64 {
    site.proxy.metric("sluice_http3_early_requests_delayed_total")
}

#[test]
fn safe_requests_are_answered_before_the_handshake_is_complete() {
    let origin = Origin::saying("x");
    let Some(site) = start_with(Setup::to_origin(&origin), early()) else { return };
    let (client, gate) = (returning(&site), Gate::start(site.proxy.address_of("main")));
    site.run(async || {
        visit(&site, &client).await;
        let (_endpoint, connection) = return_to(gate.address, &client);
        let connection = connection.expect("early data");
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        // Both are in the first packets. What changes something waits.
        let late = head("POST", "/late", &[]);
        let posting = exchange(&connection, &late);
        let opening = async {
            assert!(exchange(&connection, &head("GET", "/early", &[])).await.is_ok());
            assert_eq!(told(&origin, "/early"), [Some("1".to_owned())]);
            until(|| delayed(&site) == 1.0).await;
            assert!(told(&origin, "/late").is_empty());
            gate.open();
        };
        assert!(tokio::join!(posting, opening).0.is_ok());
        assert_eq!(told(&origin, "/late"), [None]);
        assert!(exchange(&connection, &head("GET", "/after", &[])).await.is_ok());
        assert_eq!(told(&origin, "/after"), [None]);
    });
    assert_eq!(site.proxy.metric("sluice_http3_early_requests_total"), 1.0);
    assert_eq!(site.proxy.metric("sluice_tls_handshakes_total{version=\"1.3\",resumed=\"yes\"}"), 1.0);
}

#[test]
fn requests_of_unproved_addresses_wait() {
    let origin = Origin::saying("x");
    let Some(site) = start_with(Setup::to_origin(&origin), early()) else { return };
    let (mut client, gate) = (returning(&site), Gate::start(site.proxy.address_of("main")));
    site.run(async || {
        visit(&site, &client).await;
        client.token_store(Arc::new(NoneTokenStore));
        let (_endpoint, connection) = return_to(gate.address, &client);
        let connection = connection.expect("early data");
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        let request = head("GET", "/early", &[]);
        let asking = exchange(&connection, &request);
        let opening = async {
            until(|| delayed(&site) == 1.0).await;
            gate.open();
        };
        assert!(tokio::join!(asking, opening).0.is_ok());
    });
    assert_eq!(told(&origin, "/early"), [None]);
}

#[test]
fn an_identifier_of_an_earlier_connection_proves_no_address() {
    let origin = Origin::saying("x");
    let Some(site) = start_with(Setup::to_origin(&origin), early()) else { return };
    let (mut client, gate) = (returning(&site), Gate::start(site.proxy.address_of("main")));
    let accepted = || site.proxy.metric("sluice_downstream_connections_total");
    gate.open();
    site.run(async || {
        visit(&site, &client).await;
        let (endpoint, connection) = return_to(gate.address, &client);
        let connection = connection.expect("early data");
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&connection, &head("GET", "/before", &[])).await.is_ok());
        // What a client sends after the handshake names an identifier that sluice has chosen.
        let is_short = |datagram: &Vec<u8>| datagram[0] & 0x80 == 0;
        until(|| gate.passed().iter().any(is_short)).await;
        let chosen = gate.passed().into_iter().find(is_short).unwrap()[1..13].to_vec();
        connection.close(raw::code(0x100), b"");
        endpoint.wait_idle().await;
        until(|| site.proxy.metric("sluice_downstream_connections_open") == 0.0).await;
        visit(&site, &client).await;
        let before = accepted();
        // The first datagram and those of early data go to an identifier that the client chooses.
        client.token_store(Arc::new(NoneTokenStore));
        client.initial_dst_cid_provider(Arc::new(move || ConnectionId::new(&chosen)));
        let shut = Gate::start(site.proxy.address_of("main"));
        let (_endpoint, connection) = return_to(shut.address, &client);
        let connection = connection.expect("early data");
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        send.write_all(&head("GET", "/early", &[])).await.unwrap();
        send.finish().unwrap();
        until(|| shut.passed().len() >= 2).await;
        visit(&site, &returning(&site)).await;
        assert_eq!(accepted(), before + 1.0);
    });
    assert!(told(&origin, "/early").is_empty());
}

#[test]
fn a_recording_is_not_answered_again() {
    let origin = Origin::saying("x");
    let Some(site) = start_with(Setup::to_origin(&origin), early()) else { return };
    let (client, gate) = (returning(&site), Gate::start(site.proxy.address_of("main")));
    let attacker = UdpSocket::bind("127.0.0.1:0").unwrap();
    let accepted = || site.proxy.metric("sluice_downstream_connections_total");
    let open = || site.proxy.metric("sluice_downstream_connections_open");
    site.run(async || {
        visit(&site, &client).await;
        let (_endpoint, connection) = return_to(gate.address, &client);
        let connection = connection.expect("early data");
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&connection, &head("GET", "/early", &[])).await.is_ok());
        let recording = gate.passed();
        gate.open();
        connection.close(raw::code(0x100), b"");
        // Until then, it would be taken for a part of that connection.
        until(|| open() == 0.0).await;
        let before = accepted();
        for datagram in recording {
            attacker.send_to(&datagram, site.proxy.address_of("main")).unwrap();
        }
        // It looks like a new client, without a session.
        until(|| accepted() == before + 1.0).await;
        visit(&site, &client).await;
    });
    assert_eq!(told(&origin, "/early").len(), 1);
    assert_eq!(site.proxy.metric("sluice_http3_early_requests_total"), 1.0);
}

#[test]
fn too_early_reaches_the_client() {
    let origin = Origin::answering(|request| match request.get("early-data") {
        Some(_) => b"HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n".to_vec(),
        None => crate::support::ok("x"),
    });
    let Some(site) = start_with(Setup::to_origin(&origin), early()) else { return };
    let (client, gate) = (returning(&site), Gate::start(site.proxy.address_of("main")));
    site.run(async || {
        visit(&site, &client).await;
        let (_endpoint, connection) = return_to(gate.address, &client);
        let connection = connection.expect("early data");
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        let answer = exchange(&connection, &head("GET", "/early", &[])).await.unwrap();
        // :status 425 of the static table (RFC 9204 appendix A).
        assert!(answer.windows(2).any(|two| two == [0xff, 70 - 63]), "{}", answer.escape_ascii());
    });
}

#[test]
fn a_handshake_that_stops_after_early_data_ends_in_time() {
    let keys = json!({"http3": {"early_data": "safe"}, "tls": {"handshake_timeout_ms": 300}});
    let origin = Origin::saying("x");
    let Some(site) = start_with(Setup::to_origin(&origin), keys) else { return };
    let (client, gate) = (returning(&site), Gate::start(site.proxy.address_of("main")));
    let failed = || site.proxy.metric("sluice_tls_handshake_failures_total{reason=\"timed_out\"}");
    site.run(async || {
        visit(&site, &client).await;
        let (_endpoint, connection) = return_to(gate.address, &client);
        let connection = connection.expect("early data");
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        let (mut late, _answer) = connection.open_bi().await.unwrap();
        late.write_all(&head("POST", "/late", &[])).await.unwrap();
        late.finish().unwrap();
        assert!(exchange(&connection, &head("GET", "/early", &[])).await.is_ok());
        until(|| failed() == 1.0).await;
        assert_eq!(delayed(&site), 1.0);
    });
    assert!(told(&origin, "/late").is_empty());
}

#[test]
fn without_the_key_there_is_no_early_data() {
    let origin = Origin::saying("x");
    let Some(site) = start_with(Setup::to_origin(&origin), json!({})) else { return };
    let client = returning(&site);
    site.run(async || {
        visit(&site, &client).await;
        assert!(return_to(site.proxy.address_of("main"), &client).1.is_none());
        visit(&site, &client).await;
    });
    assert_eq!(site.proxy.metric("sluice_tls_handshakes_total{version=\"1.3\",resumed=\"yes\"}"), 1.0);
}

#[test]
fn a_large_body_that_begins_early_arrives_whole() {
    let origin = Origin::saying("x");
    let Some(site) = start_with(Setup::to_origin(&origin), early()) else { return };
    let (client, gate) = (returning(&site), Gate::start(site.proxy.address_of("main")));
    let body = pattern(700_000);
    site.run(async || {
        visit(&site, &client).await;
        let (_endpoint, connection) = return_to(gate.address, &client);
        let connection = connection.expect("early data");
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        let request = [head("POST", "/large", &[]), frame(raw::DATA, &body)].concat();
        let posting = exchange(&connection, &request);
        let opening = async {
            until(|| delayed(&site) == 1.0).await;
            gate.open();
        };
        assert!(tokio::join!(posting, opening).0.is_ok());
    });
    assert_same(&origin.last().body, &body);
}
