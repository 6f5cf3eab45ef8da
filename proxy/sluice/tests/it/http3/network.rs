//! A bad network: datagrams are lost, overtake each other, and arrive twice.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use super::client::{post, to};
use super::raw::{control, exchange, frame, head};
use super::{raw, start};
use crate::support::{Origin, Setup, assert_same, pattern};

/// Of a hundred datagrams.
const LOST: u64 = 5;
const HELD: u64 = 20;
const DOUBLED: u64 = 2;

/// Relays datagrams between a client and a server.
struct Network {
    address: SocketAddr,
    has_ended: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Network {
    fn start(server: SocketAddr, seed: u64) -> Self {
        let [inner, outer] = [0, 1].map(|_| Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap()));
        outer.connect(server).unwrap();
        for socket in [&inner, &outer] {
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        }
        let (has_ended, lost) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let address = inner.local_addr().unwrap();
        let client = Arc::new(std::sync::Mutex::new(None));
        let pass = |from: &Arc<UdpSocket>, to: &Arc<UdpSocket>, inward: bool| {
            let (from, to, client) = (Arc::clone(from), Arc::clone(to), Arc::clone(&client));
            let (has_ended, lost) = (Arc::clone(&has_ended), Arc::clone(&lost));
            std::thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed + u64::from(inward));
                let (mut buffer, mut held) = ([0; 65_536], None::<Vec<u8>>);
                let deliver = |datagram: &[u8]| {
                    let _ = match (inward, *client.lock().unwrap()) {
                        (true, _) => to.send(datagram),
                        (false, Some(client)) => to.send_to(datagram, client),
                        (false, None) => Ok(0),
                    };
                };
                while !has_ended.load(Ordering::Relaxed) {
                    let Ok((count, sender)) = from.recv_from(&mut buffer) else {
                        held.take().into_iter().for_each(|late| deliver(&late));
                        continue;
                    };
                    if inward {
                        *client.lock().unwrap() = Some(sender);
                    }
                    let (datagram, fate) = (&buffer[..count], random.u64(0..100));
                    if fate < LOST {
                        lost.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    if fate < LOST + HELD && held.is_none() {
                        held = Some(datagram.to_vec());
                        continue;
                    }
                    deliver(datagram);
                    if fate > 100 - DOUBLED {
                        deliver(datagram);
                    }
                    held.take().into_iter().for_each(|late| deliver(&late));
                }
            })
        };
        let threads = vec![pass(&inner, &outer, true), pass(&outer, &inner, false)];
        Self { address, has_ended, lost, threads }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn bodies_survive_loss_and_reordering() {
    let origin = Origin::answering(|request| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len());
        [head.into_bytes(), request.body.clone()].concat()
    });
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    let body = pattern(1_000_000);
    for seed in [1, 2] {
        let network = Network::start(site.proxy.address_of("main"), seed);
        site.talk_through(network.address, async |sender| {
            for length in [10, 5000, body.len()] {
                let request = to("/").method("POST").header("content-length", length).body(()).unwrap();
                assert_same(&post(&sender, request, &body[..length], None).await.body, &body[..length]);
            }
        });
        assert!(network.lost.load(Ordering::Relaxed) > 20);
    }
    let [sent, lost] =
        ["sent", "lost"].map(|what| site.proxy.metric(&format!("sluice_http3_packets_{what}_total")));
    assert!(lost > 5.0 && sent > lost, "{lost} of {sent}");
}

/// Moves a client to other ports, and returns how many datagrams had to be passed between workers.
fn forwarded_after_moves(steering: &str) -> Option<f64> {
    let setup = Setup::to_origin(&Origin::saying("x")).with("workers", 2);
    let setup = setup.with("limits", json!({"http3": {"paths_max": 100}}));
    let site = start(setup.with("kernel", json!({"bypass": "off", "quic_steering": steering})))?;
    site.run(async || {
        let (endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        for _ in 0..20 {
            endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
            assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
        }
    });
    Some(site.proxy.metric("sluice_http3_datagrams_forwarded_total"))
}

#[test]
fn packets_of_a_client_that_moves_find_its_worker() {
    let Some(forwarded) = forwarded_after_moves("required") else { return };
    assert_eq!(forwarded, 0.0, "by the kernel");
    let Some(forwarded) = forwarded_after_moves("off") else { return };
    assert!(forwarded > 0.0, "from one worker to the other");
}
