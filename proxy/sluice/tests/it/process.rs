//! The process: startup, listeners, signals, shutdown, and its log.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, mpsc};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Origin, PATIENCE, Proxy, Setup, Wire, ok, poll};

/// An origin that responds only when told to.
pub(crate) fn gated() -> (Origin, mpsc::Sender<()>) {
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let origin = Origin::playing(move |mut peer| {
        while let Some(request) = peer.next() {
            // The sender is dropped when the test ends.
            let _ = gate.lock().unwrap().recv();
            if peer.try_send(ok(request.target())).is_err() {
                return;
            }
        }
    });
    (origin, go)
}

/// A connection with a running request at the origin.
pub(crate) fn busy(proxy: &Proxy, origin: &Origin) -> Wire {
    let before = origin.requests().len();
    let mut client = proxy.connect();
    client.send("GET /busy HTTP/1.1\r\nHost: a\r\n\r\n");
    poll("the request", || (origin.requests().len() > before).then_some(()));
    client
}

#[test]
fn sigterm_drains() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (origin, go) = gated();
        let Some(mut proxy) = Setup::to_origin(&origin).start() else { return };
        let mut idle = proxy.connect();
        go.send(()).unwrap();
        assert_eq!(idle.ask("GET /idle HTTP/1.1\r\nHost: a\r\n\r\n").text(), "/idle");
        let mut fresh = proxy.connect();
        let mut client = busy(&proxy, &origin);
        proxy.signal(signal);
        proxy.wait_for("draining");
        idle.expect_end();
        fresh.expect_end();
        assert_eq!(proxy.admin("/healthz").status(), 503);
        poll("the listener to be closed", || TcpStream::connect(proxy.address()).is_err().then_some(()));
        assert!(proxy.is_running(), "an exchange is running");
        go.send(()).unwrap();
        assert_eq!(client.response().text(), "/busy");
        client.expect_end();
        assert_eq!(proxy.wait().code(), Some(0));
        assert_eq!(proxy.outcome("/busy"), (200, "-".to_owned()), "the log is complete");
    }
}

#[test]
fn a_drain_that_is_announced_goes_on_accepting() {
    let origin = Origin::saying("served");
    let setup = Setup::to_origin(&origin).with("drain_delay", "10m");
    let Some(mut proxy) = setup.start() else { return };
    let mut kept = proxy.connect();
    assert_eq!(kept.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "served");
    proxy.signal(Signal::SIGTERM);
    proxy.wait_for("about to drain: health checks fail, and requests are still accepted");
    assert_eq!(proxy.admin("/healthz").status(), 503);
    // Clients are told to leave, and may come back.
    let answer = kept.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((answer.text(), answer.get("connection")), ("served", Some("close")));
    kept.expect_end();
    for _ in 0..3 {
        let answer = proxy.get("/");
        assert_eq!((answer.text(), answer.get("connection")), ("served", Some("close")));
    }
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(1), "a second signal waits for nothing");
    // Afterwards it drains as without.
    let setup = Setup::to_origin(&origin).with("drain_delay", "1ms");
    let Some(mut proxy) = setup.start() else { return };
    let mut kept = proxy.connect();
    assert_eq!(kept.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "served");
    proxy.signal(Signal::SIGTERM);
    kept.expect_end();
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn a_started_request_is_served_while_draining() {
    let origin = Origin::saying("served");
    let Some(mut proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.send("GET / HTTP/1.1\r\nHo");
    // A complete exchange on another connection of the single worker proves that it has seen these bytes.
    let mut idle = proxy.connect();
    idle.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    proxy.signal(Signal::SIGTERM);
    idle.expect_end();
    let answer = client.ask("st: a\r\n\r\n");
    assert_eq!((answer.text(), answer.get("connection")), ("served", Some("close")));
    client.expect_end();
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn a_drain_times_out() {
    let (origin, _go) = gated();
    let Some(mut proxy) = Setup::to_origin(&origin).with("drain_timeout_ms", 50).start() else { return };
    let mut client = busy(&proxy, &origin);
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(0));
    proxy.wait_for("the drain timed out");
    client.expect_end();
}

#[test]
fn a_second_signal_stops_at_once() {
    let (origin, _go) = gated();
    let Some(mut proxy) = Setup::to_origin(&origin).with("drain_timeout_ms", 600_000).start() else { return };
    let mut client = busy(&proxy, &origin);
    proxy.signal(Signal::SIGTERM);
    proxy.wait_for("draining");
    proxy.signal(Signal::SIGINT);
    assert_eq!(proxy.wait().code(), Some(1));
    client.expect_end();
}

#[test]
fn sigusr1_reopens_the_access_log() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    proxy.get("/before");
    proxy.record("/before");
    let (log, rotated) = (proxy.folder.join("access.log"), proxy.folder.join("access.log.1"));
    std::fs::rename(&log, &rotated).unwrap();
    proxy.get("/between");
    poll("the line in the old file", || {
        std::fs::read_to_string(&rotated).unwrap().contains("/between").then_some(())
    });
    proxy.signal(Signal::SIGUSR1);
    poll("a new file", || log.exists().then_some(()));
    proxy.get("/after");
    proxy.record("/after");
    assert!(!std::fs::read_to_string(&rotated).unwrap().contains("/after"));
}

#[test]
fn the_access_log_has_three_formats() {
    let origin = Origin::saying("hi");
    let cases = [
        (
            json!({"format": "json", "fields": ["status", "target", "reason"]}),
            "{\"status\":200,\"target\":\"/a\\\"b\",\"reason\":null}\n",
        ),
        (
            json!({"format": "ltsv", "fields": ["method", "bytes_in", "user_agent"]}),
            "method:GET\tbytes_in:0\tuser_agent:t e s t\n",
        ),
        (json!({"format": "combined"}), "] \"GET /a\\\"b HTTP/1.1\" 200 "),
    ];
    for (log, expected) in cases {
        let setup = Setup::to_origin(&origin);
        let file = setup.folder.join("lines");
        let mut log = log;
        log["output"] = json!("stdout");
        let setup = setup.after(&format!("exec >'{}'", file.display())).with("access_log", log);
        let Some(proxy) = setup.start() else { return };
        proxy.ask("GET /a\"b HTTP/1.1\r\nHost: a\r\nUser-Agent: t e s t\r\n\r\n");
        let text = poll("a line", || std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n')));
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn unix_sockets_serve_on_both_sides() {
    let setup = Setup::to(&[]);
    let origin = Origin::playing_unix(&setup.folder.join("origin.sock"), |mut peer| {
        while let Some(request) = peer.next() {
            peer.send(ok(request.get("x-forwarded-for").unwrap()));
        }
    });
    let socket = setup.folder.join("in.sock");
    // A socket left by an earlier process is replaced.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let setup = setup
        .with("clusters.default.endpoints", json!([origin.endpoint]))
        .with("listeners.0.address", format!("unix:{}", socket.display()))
        .with("workers", 2);
    let Some(proxy) = setup.start() else { return };
    for _ in 0..3 {
        let mut client = Wire::connect_unix(&socket);
        for _ in 0..2 {
            assert_eq!(client.ask("GET /u HTTP/1.1\r\nHost: a\r\n\r\n").text(), "127.0.0.1");
        }
    }
    assert_eq!(proxy.record("/u")["endpoint"], origin.endpoint);
}

#[test]
fn a_socket_from_the_service_manager_is_used() {
    let origin = Origin::saying("activated");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // This client connected before the proxy started.
    let mut early = Wire::connect(address);
    early.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let setup = Setup::to_origin(&origin)
        .with("listeners.0.address", address.to_string())
        .with("workers", 2)
        .stdin(OwnedFd::from(listener))
        .after("exec 3<&0 0</dev/null; export LISTEN_FDS=1 LISTEN_PID=$$");
    let Some(proxy) = setup.start() else { return };
    assert_eq!(early.response().text(), "activated");
    for _ in 0..4 {
        assert_eq!(proxy.get("/").text(), "activated");
    }
    assert_eq!(proxy.address(), address);
}

#[test]
fn the_service_manager_is_notified_of_ready_and_stopping() {
    let origin = Origin::saying("");
    let setup = Setup::to_origin(&origin);
    let path = setup.folder.join("notify.sock");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = || {
        let mut room = [0; 256];
        let count = manager.recv(&mut room).unwrap();
        String::from_utf8_lossy(&room[..count]).trim().to_owned()
    };
    let Some(mut proxy) = setup.after(&format!("export NOTIFY_SOCKET='{}'", path.display())).start() else {
        return;
    };
    assert_eq!(told(), "READY=1");
    proxy.signal(Signal::SIGTERM);
    assert_eq!(told(), "STOPPING=1");
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn an_address_in_use_makes_startup_exit_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (code, said) = Setup::to(&["127.0.0.1:1"]).with("listeners.0.address", address.to_string()).fails();
    if said.contains("io_uring is ") {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("sluice: listener main cannot listen on {address}: ")), "{said}");
    let socket = "/nowhere/at/all.sock";
    let (code, said) = Setup::to(&["127.0.0.1:1"]).with("admin", format!("unix:{socket}")).fails();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("sluice: admin: cannot listen on unix:{socket}: ")), "{said}");
}

#[test]
fn a_second_process_does_not_share_the_address() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let (code, said) =
        Setup::to_origin(&origin).with("listeners.0.address", proxy.address().to_string()).fails();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("in use"), "{said}");
}

#[test]
fn connections_beyond_the_limit_get_503() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).with("limits.connections_max", 2).start() else { return };
    let mut clients = [proxy.connect(), proxy.connect()];
    for client in &mut clients {
        assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "hi");
    }
    let mut third = proxy.connect();
    third.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nunheeded.");
    let answer = third.response();
    assert_eq!(
        (answer.status(), answer.get("retry-after"), answer.get("connection")),
        (503, Some("1"), Some("close"))
    );
    third.expect_end();
    drop(clients);
    let open = "sluice_downstream_connections_open";
    poll("the others to be gone", || (proxy.metric(open) == 0.0).then_some(()));
    assert_eq!(proxy.get("/").text(), "hi");
    assert_eq!(proxy.metric("sluice_downstream_connections_rejected_total"), 1.0);
}

/// If a filter denies it, or the tests run with another policy, the start line shows this.
#[test]
fn workers_use_the_logged_scheduling_policy() {
    let origin = Origin::saying("hi");
    for (wanted, policy) in [("batch", "3"), ("normal", "0")] {
        let setup = Setup::to_origin(&origin).with("workers", 2).with("worker_scheduling", wanted);
        let Some(proxy) = setup.start() else { return };
        match proxy.line_beginning("serving with ")["scheduling"].as_str().unwrap() {
            said if said == wanted => {
                // A thread gives itself its name, which may be later.
                let policies =
                    poll("the workers", || Some(proxy.worker_policies()).filter(|all| all.len() == 2));
                assert_eq!(policies, [policy, policy]);
            }
            other => eprintln!("skipped: {wanted} is not available: {other}"),
        }
        assert_eq!(proxy.get("/").text(), "hi");
    }
}

/// A hash would practically never distribute forty connections evenly.
#[test]
fn busy_workers_hand_new_connections_to_others() {
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin).with("workers", 4).with("kernel.accept_steering", "off");
    let Some(proxy) = setup.start() else { return };
    let mut clients: Vec<_> = (0..40).map(|_| proxy.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "hi");
    }
    assert_eq!(proxy.metric("sluice_downstream_connections_open"), 40.0);
    assert!(proxy.metric("sluice_downstream_connections_handed_total") > 0.0);
    drop(clients);
    poll("them to be gone", || (proxy.metric("sluice_downstream_connections_open") == 0.0).then_some(()));
}

#[test]
fn a_tcp_client_beyond_the_limit_is_closed_silently() {
    let origin = Origin::playing(|mut peer| peer.expect_end());
    let setup = Setup::to_origin(&origin)
        .with("listeners.0.protocol", "tcp")
        .with("listeners.0.cluster", "default")
        .with("limits.connections_max", 1);
    let Some(proxy) = setup.start() else { return };
    let _first = proxy.connect();
    poll("the first", || (origin.connections() == 1).then_some(()));
    proxy.connect().expect_end();
}

#[test]
fn accepting_pauses_without_descriptors() {
    let origin = Origin::saying("hi");
    // The eBPF programs take descriptors too.
    let setup = Setup::to_origin(&origin).with("kernel.bypass", "off").with("kernel.splice", "off");
    let setup = setup.with("clusters.default.pool.idle_max_per_endpoint", 0);
    let Some(proxy) = setup.after("ulimit -n 40").start() else { return };
    let mut clients: Vec<_> = (0..40).map(|_| proxy.connect()).collect();
    proxy.wait_for("cannot accept; retrying");
    // The first clients were accepted; the upstream connection gets no descriptor once the last spare one has gone to a
    // client.
    let answer = poll("a response without an origin", || {
        let answer = clients[0].ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        (answer.status() != 200).then_some(answer)
    });
    assert_eq!((answer.status(), answer.get("x-sluice-reason")), (500, Some("local_resource")));
    let mut last = clients.pop().unwrap();
    last.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    drop(clients);
    assert_eq!(last.response().text(), "hi", "waiting clients are served");
    poll("its end logged as often", || {
        (proxy.said("cannot accept; retrying") == proxy.said("accepting again")).then_some(())
    });
    assert_eq!(proxy.get("/").text(), "hi");
}

#[test]
fn the_table_of_descriptors_has_room_before_there_are_connections() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).after("ulimit -n 2000").start() else { return };
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.id())).unwrap();
    let room = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
    assert!(room.trim().parse::<u64>().unwrap() >= 2000, "{room}");
    assert_eq!(proxy.get("/").text(), "hi");
}

#[test]
fn the_admin_listener_shows_the_state() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    proxy.get("/");
    proxy.get("/");
    assert!(proxy.admin("/").text().contains("/metrics"));
    let labels =
        format!("{{route=\"default\",cluster=\"default\",endpoint=\"{}\",class=\"2xx\"}}", origin.endpoint);
    poll("both requests counted", || {
        (proxy.metric(&format!("sluice_requests_total{labels}")) == 2.0).then_some(())
    });
    assert_eq!(proxy.endpoint(&origin.endpoint)["requests"], 2);
    let config: serde_json::Value = serde_json::from_slice(&proxy.admin("/config").body).unwrap();
    assert_eq!(config["clusters"]["default"]["endpoints"][0]["address"], origin.endpoint);
    assert_eq!(config["limits"]["headers_max"], 100, "defaults are shown");
    assert_eq!(proxy.admin("/nothing").status(), 404);
    let mut wire = Wire::connect_unix(&proxy.folder.join("admin.sock"));
    let answer = wire.ask("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((answer.status(), answer.get("allow")), (405, Some("GET, HEAD")));
}

#[test]
fn the_log_contains_the_admin_address() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    assert_eq!(proxy.admin_address(), format!("unix:{}", proxy.folder.join("admin.sock").display()));
    let Some(proxy) = Setup::to_origin(&origin).with("admin", "127.0.0.1:0").start() else { return };
    let mut wire = Wire::connect(proxy.admin_address().parse().unwrap());
    assert_eq!(wire.ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").text(), "ok\n");
}

#[test]
fn admin_off_opens_no_admin_socket() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).without("admin").start() else { return };
    assert_eq!(proxy.get("/").text(), "hi");
    assert!(!proxy.folder.join("admin.sock").exists());
}

#[test]
fn several_workers_serve_many_clients_at_once() {
    let origin = Origin::answering(|request| ok(request.text()));
    let Some(proxy) = Setup::to_origin(&origin).with("workers", 4).start() else { return };
    std::thread::scope(|scope| {
        for n in 0..16 {
            let mut client = proxy.connect();
            scope.spawn(move || {
                for m in 0..25 {
                    let body = format!("{n}:{m}");
                    let head = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
                    assert_eq!(client.ask(head + &body).text(), body);
                }
            });
        }
    });
    assert_eq!(origin.requests().len(), 400);
}
