//! Reloads and upgrades while connections are open.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Buf;
use serde_json::json;

use super::client::{Sender, get, to};
use super::raw::{control, exchange, frame, head};
use super::{Site, raw, start};
use crate::support::{Origin, Setup, Wire, assert_same, pattern, poll, upgrade};

fn big() -> (Origin, Vec<u8>) {
    let body = pattern(3_000_000);
    let sent = body.clone();
    let origin = Origin::answering(move |request| match request.target() {
        "/big" => {
            [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", sent.len()).into_bytes(), sent.clone()]
                .concat()
        }
        _ => crate::support::ok("x"),
    });
    (origin, body)
}

/// Downloads in pieces, with pauses that let other things happen.
async fn download(sender: &Sender) -> Vec<u8> {
    let mut stream = sender.clone().send_request(to("/big").body(()).unwrap()).await.unwrap();
    stream.finish().await.unwrap();
    assert_eq!(stream.recv_response().await.unwrap().status(), 200);
    let (mut body, mut pause) = (Vec::new(), 0);
    while let Some(mut data) = stream.recv_data().await.unwrap() {
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        if body.len() > pause {
            pause += 100_000;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    body
}

#[test]
fn upgrades_break_no_download() {
    let (origin, body) = big();
    let Some(site) = start(Setup::to_origin(&origin).with("workers", 2)) else { return };
    let (ended, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let ended = &ended;
    std::thread::scope(|scope| {
        let (site, body, done) = (&site, &body, &done);
        let loads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        let got = site.talk(async |sender| download(&sender).await);
                        assert_same(&got, body);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let mut processes = Vec::new();
        for _ in 0..10 {
            let before = done.load(Ordering::Relaxed);
            processes.push(upgrade(&site.proxy));
            poll("a download", || {
                (done.load(Ordering::Relaxed) > before || loads.iter().any(|load| load.is_finished()))
                    .then_some(())
            });
        }
        ended.store(true, Ordering::Relaxed);
        loads.into_iter().for_each(|load| load.join().unwrap());
        let last = site.talk(async |sender| get(&sender, "/").await.status());
        assert_eq!(last, 200);
    });
}

#[test]
fn a_connection_survives_an_upgrade_and_a_move() {
    let (origin, _) = big();
    let Some(site) = start(Setup::to_origin(&origin).with("workers", 2)) else { return };
    site.run(async || {
        let (endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
        let (mut open, receive) = connection.open_bi().await.unwrap();
        open.write_all(&head("POST", "/", &[])).await.unwrap();
        let next = upgrade(&site.proxy);
        endpoint.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        open.write_all(&frame(raw::DATA, &[b'x'; 5000])).await.unwrap();
        open.finish().unwrap();
        assert!(raw::rest(receive).await.unwrap().ends_with(b"x"));
        let after = site.connect().await.1;
        let _control = control(&after, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&after, &head("GET", "/", &[])).await.is_ok(), "the new process serves");
        drop(next);
    });
}

#[test]
fn reloads_turn_it_on_and_off() {
    let (origin, _) = big();
    let Some(site) = start(Setup::to_origin(&origin).with("workers", 2)) else { return };
    let mut config = site.proxy.config.clone();
    let alt_svc = |site: &Site| {
        let client = std::sync::Arc::new(site.authority.client());
        let mut wire = Wire::connect_tls(site.proxy.address_of("main"), "a.test", &client).unwrap();
        wire.ask("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").get("alt-svc").map(str::to_owned)
    };
    for round in 0..2 {
        site.run(async || {
            let (_endpoint, connection) = site.connect().await;
            let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
            assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok(), "{round}");
        });
        assert!(alt_svc(&site).is_some());
        config["listeners"][0]["http3"] = json!({"advertised_age": 0});
        assert_eq!(site.proxy.reload(&config).0, Some(0));
        assert_eq!(alt_svc(&site).as_deref(), Some("clear"));
        config["listeners"][0]["http3"] = json!("off");
        let (code, said) = site.proxy.reload(&config);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(alt_svc(&site), None);
        // Its port is free, once the workers have let go of it.
        let port = site.proxy.address_of("main");
        poll("a free port", || std::net::UdpSocket::bind(port).ok());
        config["listeners"][0]["http3"] = json!({"advertised_port": 443});
        let (code, said) = site.proxy.reload(&config);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(alt_svc(&site).as_deref(), Some("h3=\":443\"; ma=86400"));
    }
}

#[test]
fn a_download_keeps_the_port_of_http3_that_is_turned_off() {
    let (origin, body) = big();
    let Some(site) = start(Setup::to_origin(&origin).with("workers", 1)) else { return };
    let (mut off, on) = (site.proxy.config.clone(), site.proxy.config.clone());
    off["listeners"][0]["http3"] = json!("off");
    let got = site.talk(async |sender| {
        let mut stream = sender.clone().send_request(to("/big").body(()).unwrap()).await.unwrap();
        stream.finish().await.unwrap();
        stream.recv_response().await.unwrap();
        assert_eq!(site.proxy.reload(&off).0, Some(0));
        let (code, said) = site.proxy.reload(&on);
        assert!(said.contains("its last connections still use the port"), "{said}");
        assert_ne!(code, Some(0));
        let mut body = Vec::new();
        while let Some(mut data) = stream.recv_data().await.unwrap() {
            body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        body
    });
    assert_same(&got, &body);
    poll("HTTP/3 again", || (site.proxy.reload(&on).0 == Some(0)).then_some(()));
    site.run(async || {
        let (_endpoint, connection) = site.connect().await;
        let _control = control(&connection, &frame(raw::SETTINGS, &[])).await;
        assert!(exchange(&connection, &head("GET", "/", &[])).await.is_ok());
    });
}

#[test]
fn a_connection_survives_an_upgrade_that_ends_http3() {
    let (origin, body) = big();
    let Some(site) = start(Setup::to_origin(&origin)) else { return };
    let mut config = site.proxy.config.clone();
    site.talk(async |sender| {
        assert_eq!(get(&sender, "/").await.status(), 200);
        let downloading = tokio::spawn({
            let sender = sender.clone();
            async move { download(&sender).await }
        });
        tokio::task::yield_now().await;
        config["listeners"][0]["http3"] = json!("off");
        site.proxy.rewrite(&config);
        let _next = upgrade(&site.proxy);
        assert_same(&downloading.await.unwrap(), &body);
    });
}

#[test]
fn a_connection_survives_two_upgrades() {
    let (origin, body) = big();
    let Some(site) = start(Setup::to_origin(&origin).with("workers", 2)) else { return };
    site.talk(async |sender| {
        let downloading = tokio::spawn({
            let sender = sender.clone();
            async move { download(&sender).await }
        });
        tokio::task::yield_now().await;
        let _processes = [upgrade(&site.proxy), upgrade(&site.proxy)];
        assert_same(&downloading.await.unwrap(), &body);
    });
}
