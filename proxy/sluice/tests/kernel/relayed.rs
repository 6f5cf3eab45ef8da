//! Endpoints that may not read joined bytes: relays that use splice(2), such as Docker's proxy for published ports,
//! never see them.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use nix::fcntl::{SpliceFFlags, splice};
use nix::unistd::pipe;

use crate::proxy_support::{Origin, Proxy, Setup, Wire, ok, poll, upgrade};

const GET: &str = "GET /get HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
const STALLED: &str = "sluice_bypass_refused_total{reason=\"stalled\"}";
const JOINED: &str = "sluice_path_exchanges_total{path=\"bypass\"}";
const COPIED: &str = "sluice_path_exchanges_total{path=\"copy\"}";
const SAID: &str =
    "this endpoint does not read bytes that bypass loopback TCP; its requests use TCP for a while";

/// Forwards every connection to `origin` with splice(2); returns its address.
fn relay(origin: &Origin) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, origin) = (listener.local_addr().unwrap().to_string(), origin.endpoint.clone());
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(&origin).unwrap();
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || pass(&client, &server));
            thread::spawn(move || pass(&back.0, &back.1));
        }
    });
    address
}

fn pass(from: &TcpStream, to: &TcpStream) {
    let (out, into) = pipe().unwrap();
    let some = SpliceFFlags::SPLICE_F_MOVE;
    while let Ok(mut left @ 1..) = splice(from, None, &into, None, 1 << 16, some) {
        while left > 0 {
            match splice(&out, None, to, None, left, some) {
                Ok(passed) if passed > 0 => left -= passed,
                _ => return,
            }
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn start(endpoint: &str) -> Proxy {
    let setup = Setup::to(&[endpoint]).with("kernel.bypass", "required").with("workers", 2);
    // Bytes that are never read would be waited for this long.
    setup.with("clusters.default.response_timeout_ms", 30_000).start().expect("io_uring")
}

fn echo() -> Origin {
    Origin::answering(|request| ok(&format!("{} {}", request.target(), request.body.len())))
}

#[test]
#[ignore = "needs root and BPF"]
fn a_splicing_relay_is_detected_and_its_first_requests_are_answered() {
    let origin = echo();
    let proxy = start(&relay(&origin));
    thread::scope(|scope| {
        for client in 0..16 {
            let proxy = &proxy;
            scope.spawn(move || {
                let mut wire = proxy.connect();
                for turn in 0..20 {
                    let (request, expected) =
                        if (client + turn) % 4 == 0 { (POST, "/post 4") } else { (GET, "/get 0") };
                    assert_eq!(wire.ask(request).text(), expected);
                }
            });
        }
    });
    // One request was tried once; the application got nothing of it over the joined connection.
    assert_eq!((proxy.metric(STALLED), proxy.said(SAID)), (1.0, 1));
    assert_eq!((proxy.metric(JOINED), proxy.metric(COPIED)), (0.0, 320.0));
    assert_eq!(proxy.metric("sluice_retries_total{cluster=\"default\"}"), 0.0);
}

/// A request pays for at most one trial.
#[test]
#[ignore = "needs root and BPF"]
fn a_request_is_on_trial_at_one_endpoint_only() {
    let origin = echo();
    let relays = [relay(&origin), relay(&origin), relay(&origin)];
    let setup = Setup::to(&relays.each_ref().map(String::as_str)).with("kernel.bypass", "required");
    let proxy = setup.with("clusters.default.balance", "round_robin").start().expect("io_uring");
    for asked in 1..=3 {
        assert_eq!(proxy.ask(GET).text(), "/get 0");
        assert!(proxy.metric(STALLED) <= f64::from(asked), "after {asked} requests");
    }
    assert_eq!(proxy.metric(JOINED), 0.0);
}

#[test]
#[ignore = "needs root and BPF"]
fn requests_that_must_not_be_repeated_are_not_used_for_trials() {
    let origin = echo();
    let proxy = start(&origin.endpoint);
    for _ in 0..3 {
        assert_eq!(proxy.ask(POST).text(), "/post 4");
    }
    assert_eq!((proxy.metric(JOINED), proxy.metric(COPIED)), (0.0, 3.0));
    assert_eq!(proxy.ask(GET).text(), "/get 0");
    assert_eq!(proxy.ask(POST).text(), "/post 4");
    assert_eq!((proxy.metric(JOINED), proxy.metric(COPIED)), (2.0, 3.0));
}

/// A connection that has not been accepted yet is only late.
#[test]
#[ignore = "needs root and BPF"]
fn an_application_that_accepts_late_is_not_a_relay() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = start(&listener.local_addr().unwrap().to_string());
    let mut wire = proxy.connect();
    wire.send(GET);
    poll("the connection to be joined", || (proxy.metric("sluice_bypass_pairs") == 1.0).then_some(()));
    // Several times as long as a trial takes, without an upper limit.
    let mut looks = 0;
    poll("some looks at it", || {
        looks += 1;
        (looks > 100).then_some(())
    });
    assert_eq!(proxy.metric(STALLED), 0.0);
    let origin = Origin::listening(listener, |_| ok("late"));
    assert_eq!(wire.response().text(), "late");
    assert_eq!((proxy.metric(JOINED), origin.connections()), (1.0, 1));
}

#[test]
#[ignore = "needs root and BPF"]
fn the_next_process_knows_the_result_of_trials() {
    let (origin, plain) = (echo(), echo());
    let mut proxy = start(&relay(&origin));
    assert_eq!(proxy.ask(GET).text(), "/get 0");
    assert_eq!(proxy.metric(STALLED), 1.0);
    let next = upgrade(&proxy);
    // Only then does the other process serve its metrics.
    proxy.wait();
    for _ in 0..3 {
        assert_eq!(proxy.ask(GET).text(), "/get 0");
    }
    assert_eq!((proxy.metric(STALLED), proxy.metric(JOINED)), (0.0, 0.0));
    drop((next, proxy));

    let mut proxy = start(&plain.endpoint);
    assert_eq!(proxy.ask(GET).text(), "/get 0");
    let next = upgrade(&proxy);
    proxy.wait();
    assert_eq!(proxy.ask(POST).text(), "/post 4");
    assert_eq!(proxy.metric(JOINED), 1.0);
    drop(next);
}

/// Responds to one request and stops listening.
fn answer_once(listener: TcpListener, text: &'static str) {
    thread::spawn(move || {
        let mut wire = Wire::from(listener.accept().unwrap().0);
        drop(listener);
        wire.try_request().unwrap();
        wire.send(ok(text));
    });
}

/// After a restart, another program may listen on the port.
#[test]
#[ignore = "needs root and BPF"]
fn an_endpoint_that_was_away_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    answer_once(listener, "first");
    let proxy = start(&address.to_string());
    assert_eq!(proxy.ask(GET).text(), "first");
    poll("a refusal", || (proxy.ask(GET).status() == 502).then_some(()));
    let joined = proxy.metric(JOINED);
    let _again = Origin::listening(TcpListener::bind(address).unwrap(), |_| ok("again"));
    assert_eq!(proxy.ask(POST).text(), "again");
    assert_eq!(proxy.metric(JOINED), joined);
    assert_eq!(proxy.ask(GET).text(), "again");
    assert_eq!(proxy.metric(JOINED), joined + 1.0);
}
