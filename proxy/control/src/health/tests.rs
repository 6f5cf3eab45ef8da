//! Checks against origins on loopback.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};

use sluice_config::{Balance, CheckProtocol};
use sluice_core::cluster::{EndpointAddress, Health, Seed};
use socket2::{Domain, Socket, Type};

use super::*;

pub(crate) fn config() -> HealthCheck {
    HealthCheck {
        protocol: CheckProtocol::Http,
        path: "/up".to_owned(),
        host: None,
        port: None,
        interval_ms: 1,
        timeout_ms: 10_000,
        healthy_after: 1,
        unhealthy_after: 1,
        expected_statuses: vec![(200, 299), (304, 304)],
        expected_body: None,
        grpc_service: None,
    }
}

fn cluster(address: EndpointAddress, check: HealthCheck) -> Arc<Cluster> {
    let mut config = sluice_core::cluster::fake::config(Balance::LeastRequests, false);
    config.health_check = Some(check);
    let seed = Seed {
        address,
        host: "origin.test:80".to_owned(),
        weight: 1,
        max_in_flight: None,
        bypass: None,
        is_backup: false,
    };
    Arc::new(Cluster::new("c", config, vec![seed]))
}

fn answer(mut stream: impl Read + Write, status: u16) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return;
        }
        head.push(byte[0]);
    }
    let asked = memchr::memmem::find(&head, b"\r\nHost: origin.test:80\r\n").is_some();
    let status = if asked { status } else { 400 };
    let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
}

/// An origin that responds to every connection with the current status. Its thread ends with the process.
fn origin() -> (SocketAddr, Arc<AtomicU16>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let status = Arc::new(AtomicU16::new(200));
    let (address, shown) = (listener.local_addr().unwrap(), Arc::clone(&status));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), shown.load(SeqCst));
        }
    });
    (address, status)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

/// One round over the cluster's only endpoint; returns its health and the check's result.
fn round(cluster: &Arc<Cluster>) -> (Health, LastCheck) {
    let check = cluster.config.health_check.clone().unwrap();
    block_on(Rounds::new(Arc::clone(cluster), check).round(Duration::ZERO, &|| 7));
    let endpoint = Arc::clone(&cluster.endpoints()[0]);
    (endpoint.health(7), endpoint.last_check().unwrap())
}

#[test]
fn only_expected_statuses_are_healthy() {
    let (address, status) = origin();
    let cluster = cluster(EndpointAddress::Ip(address), config());
    for (code, health, outcome) in [
        (200, Health::Healthy, "200"),
        (500, Health::Unhealthy, "status 500"),
        (304, Health::Healthy, "304"),
        (302, Health::Unhealthy, "status 302"),
    ] {
        status.store(code, SeqCst);
        let (seen, check) = round(&cluster);
        assert_eq!((seen, check.outcome.as_str(), check.at_ms), (health, outcome, 7));
        assert_eq!(check.success, health == Health::Healthy);
    }
    assert!(cluster.endpoints()[0].health_since_unix_s() > 0);
}

#[test]
fn a_refused_connection_is_a_failure() {
    // Bound, so that no other process gets the port, but not listening.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let (health, check) = round(&cluster(EndpointAddress::Ip(address), config()));
    assert_eq!(health, Health::Unhealthy);
    assert!(check.outcome.starts_with("connecting failed"), "{}", check.outcome);
}

#[test]
fn silence_ends_at_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let check = HealthCheck { timeout_ms: 20, ..config() };
    let cluster = cluster(EndpointAddress::Ip(listener.local_addr().unwrap()), check);
    let (health, check) = round(&cluster);
    assert_eq!((health, check.outcome.as_str()), (Health::Unhealthy, "no response within 20 ms"));
}

#[test]
fn unix_sockets_are_checked_too() {
    let path = std::env::temp_dir().join(format!("sluice-health-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let serving = std::thread::spawn(move || answer(listener.accept().unwrap().0, 204));
    let (health, check) = round(&cluster(EndpointAddress::Unix(path.clone()), config()));
    assert_eq!((health, check.outcome.as_str()), (Health::Healthy, "204"));
    serving.join().unwrap();
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn checks_continue_and_follow_the_origin() {
    let (address, status) = origin();
    let check = HealthCheck { healthy_after: 2, unhealthy_after: 2, ..config() };
    let cluster = cluster(EndpointAddress::Ip(address), check);
    let endpoint = Arc::clone(&cluster.endpoints()[0]);
    block_on(async {
        let checking = tokio::spawn(run(Arc::clone(&cluster), || 1));
        for (code, health) in [(503, Health::Unhealthy), (200, Health::Healthy)] {
            status.store(code, SeqCst);
            let follows = async {
                while endpoint.health(1) != health {
                    tokio::task::yield_now().await;
                }
            };
            // Only so that a failure ends the test; a success takes as long as it needs.
            tokio::time::timeout(Duration::from_secs(60), follows).await.unwrap();
        }
        checking.abort();
    });
}
